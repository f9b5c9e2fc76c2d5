package org.apache.spark.sql.statestore.driver

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8
import java.util.{Collections, WeakHashMap}

import com.fasterxml.jackson.databind.JsonNode

import org.apache.hadoop.fs.Path

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.{InvalidOptionException, StateStoreExtensions}
import org.apache.spark.sql.statestore.backend.CheckpointClient
import org.apache.spark.sql.statestore.compat.Since41
import org.apache.spark.sql.statestore.compat.Since41.{CheckpointFileManager, StreamExecution}
import org.apache.spark.sql.statestore.provider.StoreLocation

/**
 * Spark's checkpoint format, v1 or v2, of each query.
 *
 * Guarantees: a checkpoint that has a batch keeps its format, whatever the session has; where Spark does not let it, the query
 * is refused before its first batch. A new query of this store has the format that its session sets; if it sets none, v2 from
 * Spark 4.3 on, where every session can read it.
 */
private[statestore] object CheckpointFormat {
  private val Key = SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key
  private val ProviderKey = SQLConf.STATE_STORE_PROVIDER_CLASS.key

  // In 4.1 the data source reads format v2 only in a session that sets it. In 4.2 the commit log has the format of the session that
  // the query was started in, and not of the query's own copy.
  private val isDefaultV2 = !Seq("4.0.", "4.1.", "4.2.").exists(SPARK_VERSION.startsWith(_))
  private val isSettable = !SPARK_VERSION.startsWith("4.2.")

  private val verified = Collections.synchronizedMap(new WeakHashMap[StreamExecution, java.lang.Boolean])

  /** Sets the format in the settings of a query that has not read them yet. */
  def settle(query: StreamExecution): Unit = Since41.ownSession(query).filter(_ => isSettable).map(_.conf).foreach { conf =>
    if (providerOf(query).orElse(conf.getOption(ProviderKey)).exists(StateStoreExtensions.isOurs)) {
      val ofNew = if (isDefaultV2 && !conf.getAll.contains(Key)) Some(2) else None
      formatOf(query).orElse(ofNew).foreach(version => conf.set(Key, version.toString))
      // `require` needs no other look at the storage.
      verified.put(query, true)
    }
  }

  /**
   * Checks that a query has the format of its checkpoint. The storage is asked once for a run, and not if `settle` has.
   *
   * @throws InvalidOptionException  if not
   */
  def require(query: StreamExecution, conf: SQLConf): Unit = if (!verified.containsKey(query)) {
    val format = conf.getConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION)
    formatOf(query).filter(_ != format).foreach { own =>
      throw new InvalidOptionException(
        s"the checkpoint at ${query.resolvedCheckpointRoot} has Spark's checkpoint format v$own, and '$Key' is $format in this " +
          s"session. Spark $SPARK_VERSION continues a query only in its own format: set it to $own before the query starts. " +
          "Nothing was changed.")
    }
    verified.put(query, true)
  }

  // None without a batch in the commit log.
  private def formatOf(query: StreamExecution): Option[Int] =
    newest(query, StoreLocation.CommitLog).map { entry =>
      entry.version match {
        case version if version <= 2 => version
        // Version 3 of the log has ids in format v2 alone.
        case _ => if (entry.lines.exists(_.path("stateUniqueIds").size > 0)) 2 else 1
      }
    }

  // The provider that the query keeps; None if its first batch has not begun.
  private def providerOf(query: StreamExecution): Option[String] =
    newest(query, StoreLocation.OffsetLog).map(_.lines.headOption.fold("")(_.path("conf").path(ProviderKey).asText))

  private final class Entry(val version: Int, val lines: Seq[JsonNode])

  // The newest entry of a log of the query.
  private def newest(query: StreamExecution, log: String): Option[Entry] = {
    val directory = new Path(query.resolvedCheckpointRoot, log)
    val files = Since41.fileManager(directory, query.sparkSession.sessionState.newHadoopConf())
    val batches = try files.list(directory).toSeq.map(_.getPath) catch {
      case _: FileNotFoundException => Nil
    }
    batches.filter(_.getName.matches("\\d{1,18}")).sortBy(_.getName.toLong).lastOption.map(read(files, _))
  }

  private def read(files: CheckpointFileManager, batch: Path): Entry = {
    val stream = files.open(batch)
    val lines = try new String(stream.readAllBytes(), UTF_8).split('\n') finally stream.close()
    val version = lines.head.stripPrefix("v").trim.toIntOption.getOrElse(throw new IllegalStateException(
      s"$batch does not begin with the version of a log: it is damaged. Restore it from a backup; nothing was changed."))
    new Entry(version, lines.tail.toSeq.filter(_.startsWith("{")).map(CheckpointClient.mapper.readTree(_)))
  }
}
