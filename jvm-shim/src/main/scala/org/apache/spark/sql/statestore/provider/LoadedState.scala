package org.apache.spark.sql.statestore.provider

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.statestore.backend.{FamilyChanges, SnapshotHandle, StoredVersion}
import org.apache.spark.sql.statestore.families.{ColumnFamily, FamilySchema, FamilySnapshot}
import org.apache.spark.sql.statestore.table.{Log, LoggedChanges, ReadLease, RetiredMemory, StateTable}

/**
 * A committed version that can be returned to: snapshots of its tables in memory, and its handle in
 * storage, None until the commit that was handed over is durable.
 */
private[statestore] final class CommittedVersion(
    val version: Long,
    val id: Option[String],
    val families: Seq[FamilySnapshot],
    var stored: Option[StoredVersion]) {

  /** Returns the tail of a family's log, the start of the log if the family was created later. */
  def tailOf(family: ColumnFamily): Long = {
    val snapshot = families.find(_.family eq family)
    if (snapshot.isDefined) snapshot.get.content.tail else Log.FirstOffset
  }
}

/**
 * The column families of one store in memory, at a version, with the recent versions that can be
 * returned to.
 *
 * Guarantees: at most one writer, which is exclusive but for the read store that it was upgraded from. A
 * store that finds it in use loads a copy of its own, so no lock is needed while rows are read and written.
 * Methods that change it are called under the provider's lock. Mapped memory stays valid while a lease is open,
 * and is unmapped after `drop`, or once a table does not use it any more.
 */
private[statestore] final class LoadedState(
    version: Long,
    id: Option[String],
    loaded: Seq[ColumnFamily],
    stored: Option[StoredVersion],
    versionsInMemory: Int) extends Logging {

  private val byName = new java.util.LinkedHashMap[String, ColumnFamily]
  loaded.foreach(family => byName.put(family.name, family))

  // The last used family: operators access the same one row by row.
  private var latest: NamedFamily = _

  private val retiredMemory = new RetiredMemory
  private val slices = new LogSlices
  private var versions = List(versionAs(version, id, stored))
  slices.add(newest)
  private var writer: AnyRef = _
  private val readers = java.util.Collections.newSetFromMap(
    new java.util.IdentityHashMap[AnyRef, java.lang.Boolean])

  /** An uploaded snapshot that the next commit uses as its base, or a run that it uses. */
  var pendingSnapshot: Option[SnapshotHandle] = None

  /** True if the next commit writes a snapshot, which was due when Spark's maintenance called. */
  var snapshotOnCommit = false

  /** Version of the snapshot or run that is being uploaded. */
  var snapshotInProgress: Option[Long] = None

  /** Version of the snapshot of which a local copy is being written. */
  var copyInProgress: Option[Long] = None

  /** Number of versions that were rolled back. */
  var rewinds = 0L

  /** The newest version that Spark is known to have committed, since a store was opened at it. */
  var confirmed: CommittedVersion = newest

  // The last attempt that was rolled back, in checkpoint format v2: Spark may have accepted it.
  private var undone: Option[UndoneVersion] = None

  // The newest version that may be used: the tasks of later ones have failed.
  private var usableUntil = Long.MaxValue

  def newest: CommittedVersion = versions.head

  /** Returns the column family of a name, null if there is none. */
  def family(name: String): ColumnFamily = {
    val entry = latest
    if (entry != null && (entry.name eq name)) entry.family else lookUp(name)
  }

  def families: Iterable[ColumnFamily] = byName.values.asScala

  /** Adds an empty column family, which the commit of `createdAtVersion` creates. */
  def create(schema: FamilySchema, createdAtVersion: Long): Unit =
    replace(ColumnFamily.empty(schema, createdAtVersion))

  /** Replaces the column family of that name, which the commit of its `createdAtVersion` creates. */
  def replace(family: ColumnFamily): Unit = {
    latest = null
    byName.put(family.name, family)
  }

  /** Removes a column family with its rows. */
  def remove(name: String): Boolean = {
    latest = null
    byName.remove(name) != null
  }

  /** Number of keys of the families that are not internal. */
  def numKeys: Long = families.iterator.filterNot(_.schema.isInternal).map(_.table.numKeys).sum

  def memoryBytes: Long = families.iterator.map(_.table.memoryBytes).sum

  def liveBytes: Long = families.iterator.map(_.table.liveBytes).sum

  /** Number of values of all keys: the rows of a snapshot. */
  def liveRows: Long = families.iterator.map(_.table.numValues).sum

  /** The oldest version at which a stream of the newest version ends and since which all changes are slices of the logs. */
  def knownSince: Option[Long] = newest.stored.flatMap(slices.knownSince)

  /** True if all changes since a version are slices of the logs. */
  def knows(since: Long): Boolean = slices.isKnown(since)

  /** Returns the net changes from a known version to the newest one. */
  def changesSince(version: Long): Seq[FamilyChanges] =
    newest.families.map(family => FamilyChanges.since(slices.tailOf(version, family.family), family))

  /** Bytes written since a version. */
  def changedBytes(since: CommittedVersion): Long =
    families.iterator.map(family => family.table.tail - since.tailOf(family)).sum

  def isWriter(store: AnyRef): Boolean = writer eq store

  def isIdle: Boolean = writer == null && readers.isEmpty

  def isAt(version: Long, id: Option[String]): Boolean = newest.version == version && newest.id == id

  /** True if a reader of this version can share it. */
  def canRead(version: Long, id: Option[String]): Boolean = writer == null && isAt(version, id) && isUsable

  /** True if the newest version may be used: its task has not failed. */
  def isUsable: Boolean = newest.version <= usableUntil

  /** Has versions after this one not be used any more, nor be snapshots made of them. */
  def useUntil(version: Long): Unit = usableUntil = math.min(usableUntil, version)

  def read(reader: AnyRef): Unit = {
    readers.add(reader)
    confirmed = newest
  }

  def write(store: AnyRef): Unit = {
    writer = store
    confirmed = newest
  }

  /** True if a reader is the only user. */
  def canUpgrade(reader: AnyRef): Boolean = writer == null && readers.size == 1 && readers.contains(reader)

  /** Replaces the only reader by a writer. */
  def upgrade(store: AnyRef): Unit = {
    readers.clear()
    writer = store
  }

  def release(holder: AnyRef): Unit = {
    readers.remove(holder)
    if (writer eq holder) writer = null
  }

  /** Opens a lease on the tables' memory for a store that the calling thread opens. */
  def newLease(): ReadLease = retiredMemory.newLease()

  /** Opens a lease on the tables' memory for work in the background; returns the function that ends it. */
  def leaseInBackground(): () => Unit = {
    retiredMemory.acquire()
    () => retiredMemory.release()
  }

  /** Frees all memory once no lease is open, unless `keep` is called before. No store is opened on this state meanwhile. */
  def drop(): Unit = retiredMemory.retireOnceUnused(() => allFamilies.toSeq.flatMap(_.table.takeMemory()))

  /** Keeps the memory after `drop`: a store that is still open has committed the newest version. */
  def keep(): Unit = retiredMemory.cancelRetirement()

  /** Undoes uncommitted changes. */
  def rollback(): Unit = freeingUnused {
    latest = null
    byName.clear()
    newest.families.foreach { snapshot =>
      snapshot.family.table.rollbackTo(snapshot.content)
      byName.put(snapshot.family.name, snapshot.family)
    }
  }

  /**
   * Returns to a recent version and drops the later ones; false if the version is not in memory, or if
   * a newer snapshot is being uploaded or copied.
   */
  def rewind(version: Long, id: Option[String]): Boolean =
    version <= usableUntil &&
      (rewindTo(v => v.version == version && v.id == id) || undone.exists(_.is(version, id)) && redo(undone.get))

  private def rewindTo(isWanted: CommittedVersion => Boolean, keepsUndone: Boolean = true): Boolean = {
    val from = versions.dropWhile(v => !isWanted(v))
    if (from.isEmpty || (snapshotInProgress ++ copyInProgress).exists(_ > from.head.version)) {
      false
    } else {
      if (from.head ne newest) {
        rewinds += 1
        undone = if (keepsUndone) UndoneVersion.of(newest, from.head) else None
        keepVersions(from)
        slices.dropAfter(from.head.version)
        // A snapshot of a dropped version is invalid: the version may be committed again with other rows.
        pendingSnapshot = pendingSnapshot.filter(_.version <= from.head.version)
      }
      usableUntil = Long.MaxValue
      rollback()
      true
    }
  }

  // Makes the changes of an attempt again in place of those of a later attempt at the same version.
  private def redo(attempt: UndoneVersion): Boolean = rewindTo(_ eq attempt.parent) && {
    undone = None
    attempt.changes.foreach { case (family, changes) => changes.applyTo(family.table) }
    published(committed(attempt.version.version, attempt.version.id), attempt.version.stored.get)
    true
  }

  /**
   * Returns to the newest durable version before one, to which the changes of later commits can be applied; false if there is
   * none, or if a newer snapshot is being uploaded or copied.
   */
  def rewindBefore(version: Long): Boolean =
    (snapshotInProgress ++ copyInProgress).isEmpty &&
      rewindTo(v => v.version < version && v.version <= usableUntil && v.stored.isDefined, keepsUndone = false)

  /** Records that the changes of the commits up to a version were applied to the newest version. */
  def advance(version: Long, id: Option[String], stored: StoredVersion): LoadedState = {
    // Other executors may discard what this one has uploaded.
    pendingSnapshot = None
    undone = None
    published(committed(version, id), stored)
    this
  }

  /** Adds the version that the tables have now; `published` follows when it is durable. */
  def committed(version: Long, id: Option[String]): CommittedVersion = {
    keepVersions((versionAs(version, id, None) :: versions).take(versionsInMemory))
    slices.add(newest)
    newest
  }

  /** Records the handle of a version that was added. */
  def published(committedVersion: CommittedVersion, stored: StoredVersion): Unit = {
    committedVersion.stored = Some(stored)
    slices.keep(stored)
    pendingSnapshot = pendingSnapshot.filter(_.version > stored.baseVersion)
    if (stored.baseVersion == committedVersion.version) snapshotOnCommit = false
  }

  /** The handle of the newest version that is durable. */
  def newestStored: Option[StoredVersion] = versions.iterator.flatMap(_.stored).nextOption()

  /**
   * Compacts logs of which most is superseded, large ones in the background, and adopts finished compactions.
   * Returns whether a table was compacted; then only the newest version can be returned to.
   */
  def compactIfWanted(): Boolean = {
    var compacted = false
    try {
      families.foreach(family => compacted |= compactIfWanted(family.table))
    } finally {
      // Also if a table fails after others were compacted: their records have other offsets, and another order if they
      // are ordered.
      if (compacted) {
        undone = None
        keepVersions(List(versionAs(newest.version, newest.id, newest.stored)))
        slices.clear()
        slices.add(newest)
      }
      retiredMemory.retire(families.flatMap(_.table.takeReplacedMemory()))
    }
    families.foreach(_.table.useFreedHeap())
    compacted
  }

  /** Moves some of the rows from the heap to files; false if there are none to move. To be called while it is idle. */
  def moveToFiles(): Boolean = families.exists(_.table.moveToFiles())

  private def compactIfWanted(table: StateTable): Boolean =
    if (table.needsCompaction) {
      table.compact()
      true
    } else if (table.isCompacting) {
      table.adoptCompaction()
    } else {
      if (table.wantsCompaction) inBackground(table)
      false
    }

  private def inBackground(table: StateTable): Unit = {
    val compaction = table.beginCompaction()
    val endLease = leaseInBackground()
    Background.submit { () =>
      try compaction.run() catch {
        // The table is unchanged, and compacted in the foreground if it must be.
        case NonFatal(e) =>
          logWarning("a state table could not be compacted in the background; the next batch tries it again", e)
      } finally {
        endLease()
      }
    }
  }

  private def keepVersions(list: List[CommittedVersion]): Unit = freeingUnused { versions = list }

  // Frees the families that are in no version after `body`.
  private def freeingUnused(body: => Unit): Unit = {
    val before = allFamilies
    body
    val unused = before -- allFamilies
    if (unused.nonEmpty) retiredMemory.retire(unused.flatMap(_.table.takeMemory()))
  }

  private def allFamilies: Set[ColumnFamily] = families.toSet ++ versions.flatMap(_.families.map(_.family))

  private def lookUp(name: String): ColumnFamily = {
    val family = byName.get(name)
    if (family != null) latest = new NamedFamily(name, family)
    family
  }

  private def versionAs(version: Long, id: Option[String], stored: Option[StoredVersion]): CommittedVersion =
    new CommittedVersion(version, id, families.map(_.snapshot()).toList, stored)
}

/** A column family and its name, as one immutable object that readers share without a lock. */
private final class NamedFamily(val name: String, val family: ColumnFamily)

/**
 * An attempt at a version that was rolled back, with the changes that it made to its parent.
 *
 * @param parent  the version before it
 */
private final class UndoneVersion(
    val version: CommittedVersion, val parent: CommittedVersion, val changes: Seq[(ColumnFamily, LoggedChanges)]) {

  def is(version: Long, id: Option[String]): Boolean =
    this.version.version == version && this.version.id == id && this.version.stored.isDefined
}

private object UndoneVersion {
  // Beyond this many bytes of changes the state is loaded again.
  private final val MostBytes = 64L << 20

  /** Copies what an attempt changed before it is rolled back; None if it has no id, or created or removed a column family. */
  def of(attempt: CommittedVersion, parent: CommittedVersion): Option[UndoneVersion] = {
    val bytes = attempt.families.map(snapshot => snapshot.content.tail - parent.tailOf(snapshot.family)).sum
    val isKept = attempt.id.isDefined && attempt.version == parent.version + 1 && bytes <= MostBytes &&
      attempt.families.map(_.family).toSet == parent.families.map(_.family).toSet
    if (isKept) {
      Some(new UndoneVersion(attempt, parent, attempt.families.map { snapshot =>
        val family = snapshot.family
        (family, LoggedChanges.of(family.table, parent.tailOf(family), snapshot.content.view))
      }))
    } else {
      None
    }
  }
}
