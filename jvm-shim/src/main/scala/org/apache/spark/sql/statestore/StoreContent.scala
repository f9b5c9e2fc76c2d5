package org.apache.spark.sql.statestore

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.families.{ColumnFamily, FamilyMark, FamilySchema}
import org.apache.spark.sql.statestore.io.{StoredBase, StoredVersion}
import org.apache.spark.sql.statestore.table.{Log, StateTable}

/**
 * A committed version that the tables still know: the offsets that name it in memory and the
 * handle that names it in storage.
 */
private[statestore] final class VersionMark(
    val version: Long,
    val id: Option[String],
    val families: Seq[FamilyMark],
    val stored: Option[StoredVersion]) {

  /** Where a family's log ended, the start of the log for one that came later. */
  def tailOf(family: ColumnFamily): Long = {
    val known = families.find(_.family eq family)
    if (known.isDefined) known.get.content.tail else Log.FirstOffset
  }
}

/**
 * One store's state in memory, at a version, with the recent versions it can return to: which column
 * families there are, and the rows of each.
 *
 * Guarantees: at most one writer; a writer has it alone but for the read store it grew from. Who
 * finds it taken loads a content of his own, so no lock is needed while rows are read and written.
 * What changes something is called under the provider's lock; what a holder reads is not.
 */
private[statestore] final class StoreContent(
    version: Long,
    id: Option[String],
    loaded: Seq[ColumnFamily],
    stored: Option[StoredVersion],
    versionsInMemory: Int) extends Logging {

  private val byName = new java.util.LinkedHashMap[String, ColumnFamily]
  loaded.foreach(family => byName.put(family.name, family))

  // The family that was asked for last: an operator asks for the same one row by row.
  private var latest: NamedFamily = _

  private var marks = List(markAs(version, id, stored))
  private var writer: AnyRef = _
  private val readers = java.util.Collections.newSetFromMap(
    new java.util.IdentityHashMap[AnyRef, java.lang.Boolean])

  /** A snapshot of a version in memory that waits for the next commit. */
  var pendingBase: Option[StoredBase] = None

  /** The version of which a snapshot is being written, none if no one is. */
  var materialising: Option[Long] = None

  /** The newest version that Spark is known to have accepted: it asked for it by name. */
  var accepted: VersionMark = newest

  def newest: VersionMark = marks.head

  /** The column family of a name, null when there is none. */
  def family(name: String): ColumnFamily = {
    val known = latest
    if (known != null && (known.name eq name)) known.family else lookUp(name)
  }

  def families: Iterable[ColumnFamily] = byName.values.asScala

  /** Adds an empty column family, which the commit of `since` creates. */
  def create(schema: FamilySchema, since: Long): Unit = {
    latest = null
    byName.put(schema.name, ColumnFamily.empty(schema, since))
  }

  /** Removes a column family with its rows. */
  def remove(name: String): Boolean = {
    latest = null
    byName.remove(name) != null
  }

  /** Keys of the families that Spark counts. */
  def numKeys: Long = families.iterator.filterNot(_.schema.isInternal).map(_.table.numKeys).sum

  def memoryBytes: Long = families.iterator.map(_.table.memoryBytes).sum

  def liveBytes: Long = families.iterator.map(_.table.liveBytes).sum

  /** Bytes written since a version. */
  def changedBytes(since: VersionMark): Long =
    families.iterator.map(family => family.table.tail - since.tailOf(family)).sum

  def isWriter(store: AnyRef): Boolean = writer eq store

  def isIdle: Boolean = writer == null && readers.isEmpty

  def isAt(version: Long, id: Option[String]): Boolean = newest.version == version && newest.id == id

  /** Shares the content with readers that are at the same version. */
  def canRead(version: Long, id: Option[String]): Boolean = writer == null && isAt(version, id)

  def read(reader: AnyRef): Unit = {
    readers.add(reader)
    accepted = newest
  }

  def write(store: AnyRef): Unit = {
    writer = store
    accepted = newest
  }

  /** Turns the only reader into the writer; false when others use the content. */
  def upgrade(reader: AnyRef, store: AnyRef): Boolean =
    if (writer == null && readers.size == 1 && readers.contains(reader)) {
      readers.clear()
      writer = store
      true
    } else {
      false
    }

  def release(holder: AnyRef): Unit = {
    readers.remove(holder)
    if (writer eq holder) writer = null
  }

  /** Undoes what was not committed. */
  def rollback(): Unit = {
    latest = null
    byName.clear()
    newest.families.foreach { mark =>
      mark.family.table.rollbackTo(mark.content)
      byName.put(mark.family.name, mark.family)
    }
  }

  /**
   * Returns to a recent version, forgetting the later ones; false when it is not known here, or
   * when undoing would change rows under a snapshot that is being written.
   */
  def rewind(version: Long, id: Option[String]): Boolean = {
    val from = marks.dropWhile(m => !(m.version == version && m.id == id))
    if (from.isEmpty || materialising.exists(_ > version)) {
      false
    } else {
      if (from.head ne newest) {
        marks = from
        // It may show rows that are now undone, and its version may come again with others.
        pendingBase = pendingBase.filter(_.version <= version)
      }
      rollback()
      true
    }
  }

  def committed(version: Long, id: Option[String], stored: StoredVersion): Unit = {
    marks = (markAs(version, id, Some(stored)) :: marks).take(versionsInMemory)
    pendingBase = pendingBase.filter(_.version > stored.baseVersion)
  }

  /**
   * Sees to the logs that are mostly dead: has them compacted in the background, and takes over what was.
   * Returns whether one was compacted; then only the newest version stays known.
   */
  def compactIfWanted(): Boolean = {
    val compacted = families.count { family =>
      val table = family.table
      if (table.needsCompaction) {
        table.compact()
        true
      } else if (table.isCompacting) {
        table.adoptCompaction()
      } else {
        if (table.wantsCompaction) inBackground(table)
        false
      }
    } > 0
    if (compacted) marks = List(markAs(newest.version, newest.id, newest.stored))
    compacted
  }

  private def inBackground(table: StateTable): Unit = {
    val compaction = table.beginCompaction()
    Background.submit { () =>
      try compaction.run() catch {
        // The table stays as it was, and is compacted when it must be.
        case NonFatal(e) => logWarning("a state table could not be compacted in the background", e)
      }
    }
  }

  private def lookUp(name: String): ColumnFamily = {
    val family = byName.get(name)
    if (family != null) latest = new NamedFamily(name, family)
    family
  }

  private def markAs(version: Long, id: Option[String], stored: Option[StoredVersion]): VersionMark =
    new VersionMark(version, id, families.map(_.mark()).toList, stored)
}

/** What a column family is asked for by, and the family. Its fields are final: readers share it without a lock. */
private final class NamedFamily(val name: String, val family: ColumnFamily)
