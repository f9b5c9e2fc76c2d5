package org.apache.spark.sql.statestore

import org.apache.spark.sql.statestore.io.{StoredBase, StoredVersion}
import org.apache.spark.sql.statestore.table.{Log, LogView, StateTable}

/**
 * A committed version that the table still knows: the offset that names it in memory and the
 * handle that names it in storage.
 */
private[statestore] final class VersionMark(
    val version: Long,
    val id: Option[String],
    val view: LogView,
    val rows: Long,
    val stored: Option[StoredVersion]) {

  def tail: Long = view.end
}

/**
 * One store's state in memory, at a version, with the recent versions it can return to.
 *
 * Guarantees: at most one writer; a writer has it alone but for the read store it grew from. Who
 * finds it taken loads a content of his own, so no lock is needed while rows are read and written.
 * All methods are called under the provider's lock.
 */
private[statestore] final class StoreContent(val table: StateTable, loaded: VersionMark, versionsInMemory: Int) {
  private var marks = List(loaded)
  private var writer: AnyRef = _
  private val readers = java.util.Collections.newSetFromMap(
    new java.util.IdentityHashMap[AnyRef, java.lang.Boolean])

  /** A snapshot of a version in memory that waits for the next commit. */
  var pendingBase: Option[StoredBase] = None

  /** The version of which a snapshot is being written, none if no one is. */
  var materialising: Option[Long] = None

  def newest: VersionMark = marks.head

  /** The newest version that Spark is known to have accepted: it asked for it by name. */
  var accepted: VersionMark = loaded

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
  def rollback(): Unit = table.rollbackTo(newest.tail)

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
    marks = (new VersionMark(version, id, table.view, table.numKeys, Some(stored)) :: marks).take(versionsInMemory)
    pendingBase = pendingBase.filter(_.version > stored.baseVersion)
  }

  /** Compacts the log if most of it is dead; only the newest version stays known. */
  def compactIfWanted(): Boolean =
    if (table.wantsCompaction) {
      table.compact()
      marks = List(new VersionMark(newest.version, newest.id, table.view, table.numKeys, newest.stored))
      true
    } else {
      false
    }
}

private[statestore] object StoreContent {
  def emptyMark(version: Long, table: StateTable): VersionMark = {
    require(table.tail == Log.FirstOffset, "an empty table has no records")
    new VersionMark(version, None, table.view, 0L, None)
  }
}
