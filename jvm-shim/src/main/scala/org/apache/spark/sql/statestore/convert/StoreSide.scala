package org.apache.spark.sql.statestore.convert

import java.util.UUID

import com.fasterxml.jackson.databind.JsonNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.CheckpointStateStoreProvider
import org.apache.spark.sql.statestore.compat.Since41
import org.apache.spark.util.SerializableConfiguration

/**
 * One side of a conversion: the stores of a checkpoint location by one provider, at one version.
 *
 * Guarantees: reading changes no file; `write` publishes a store at just that version, as a full snapshot.
 */
private[convert] final class StoreSide(
    root: String,
    version: Long,
    conf: StateStoreConf,
    settings: Map[String, String],
    hadoopConf: SerializableConfiguration) extends Serializable {
  /** Opens a store's version, passes it to a function with the families that it has, and closes it. */
  def read[T](store: StoreSpec, partition: Int, id: Option[String])(body: (ReadStateStore, Seq[Family]) => T): T =
    using(store, partition) { provider =>
      val opened = if (store.hasFamilies) FamilyReads.open(provider, version, id) else provider.getReadStore(version, id)
      var isComplete = false
      try {
        val present = if (store.hasFamilies) familiesIn(store, provider, opened) else store.families
        if (store.hasFamilies) present.foreach(FamilyReads.declare(opened, _))
        val result = body(opened, present)
        isComplete = true
        result
      } finally {
        // After a failure Spark's stores abort once more.
        if (!isComplete) opened.abort() else if (store.hasFamilies) FamilyReads.close(opened) else Since41.release(opened)
      }
    }

  /** Passes an empty store to a function, commits what it puts there, and returns the checkpoint id, if there is one. */
  def write(store: StoreSpec, partition: Int, families: Seq[Family])(body: StateStore => Unit): Option[String] =
    using(store, partition) { provider =>
      val (opened, isAtVersion) = StoreAccess.openEmpty(provider, version - 1)
      var isComplete = false
      try {
        if (store.hasFamilies) families.foreach { family =>
          opened.createColFamilyIfAbsent(
            family.name, family.keySchema, family.valueSchema, family.spec, family.hasLists, family.isInternal)
        }
        body(opened)
        opened.commit()
        isComplete = true
      } finally if (!isComplete) opened.abort()
      val id = opened.getStateStoreCheckpointInfo().stateStoreCkptId
      if (!isAtVersion) renumber(provider.stateStoreId, id)
      id
    }

  // Every family that the store has must be known, or its rows would be lost.
  private def familiesIn(store: StoreSpec, provider: StateStoreProvider, opened: ReadStateStore): Seq[Family] =
    StoreAccess.familyNames(opened).fold(store.families) { names =>
      val familyNames = names - StateStore.DEFAULT_COL_FAMILY_NAME
      (familyNames -- store.families.map(_.name)).foreach { name =>
        throw new IllegalStateException(
          s"${provider.stateStoreId} has the column family '$name', which no schema file of its operator describes, so " +
            "its rows cannot be read. Nothing was changed.")
      }
      store.families.filter(family => familyNames(family.name))
    }

  // Spark's stores read some settings from the active session instead of `conf`.
  private def using[T](store: StoreSpec, partition: Int)(body: StateStoreProvider => T): T =
    SQLConf.withExistingConf(sessionConf)(open(store, partition)(body))

  private def sessionConf: SQLConf = {
    val conf = new SQLConf
    settings.foreach { case (name, value) => conf.setConfString(name, value) }
    conf
  }

  private def open[T](store: StoreSpec, partition: Int)(body: StateStoreProvider => T): T = {
    val default = store.default
    val provider = StateStoreProvider.createAndInit(
      StateStoreProviderId(StateStoreId(root, store.operator, partition, store.name), UUID.randomUUID()),
      default.keySchema, default.valueSchema, default.spec, store.hasFamilies, conf,
      // Spark sets the id of the run in it.
      new Configuration(hadoopConf.value), default.hasLists, None)
    try body(provider) finally provider.close()
  }

  // The first version of such a store has all rows in one file, which is a snapshot of any version by its name.
  private def renumber(id: StateStoreId, ckptId: Option[String]): Unit = if (version != 1) {
    val directory = id.storeCheckpointLocation()
    val fs = directory.getFileSystem(hadoopConf.value)
    val suffix = ckptId.fold("")("_" + _)
    val (from, to) = Seq(s"1$suffix.zip" -> s"$version$suffix.zip", "1.delta" -> s"$version.snapshot")
      .map { case (from, to) => (new Path(directory, from), new Path(directory, to)) }
      .find { case (from, _) => fs.exists(from) }
      .getOrElse(throw new IllegalStateException(s"$id has no file of the version that it committed. Please report this error."))
    // An attempt that failed after this may have left it.
    fs.delete(to, false)
    if (!fs.rename(from, to)) throw new java.io.IOException(s"$from cannot be renamed to $to")
  }
}

private[convert] object StoreSide {
  private val FileManager = "spark.sql.streaming.checkpointFileManagerClass"

  def apply(session: SparkSession, node: JsonNode, version: Long): StoreSide = {
    val conf = session.sessionState.conf.clone()
    node.path("conf").properties().forEach { entry =>
      if (entry.getValue.isNull) conf.unsetConf(entry.getKey) else conf.setConfString(entry.getKey, entry.getValue.asText)
    }
    val hadoopConf = session.sessionState.newHadoopConf()
    // Spark's own stores use the file systems of Hadoop.
    if (!conf.stateStoreProviderClass.startsWith(classOf[CheckpointStateStoreProvider].getPackageName)) {
      hadoopConf.unset(FileManager)
    }
    new StoreSide(node.path("root").asText, version, new StateStoreConf(conf), conf.getAllConfs,
      new SerializableConfiguration(hadoopConf))
  }
}
