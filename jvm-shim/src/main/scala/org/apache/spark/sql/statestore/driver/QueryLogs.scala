package org.apache.spark.sql.statestore.driver

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.backend.CheckpointClient
import org.apache.spark.sql.statestore.compat.Since41
import org.apache.spark.sql.statestore.compat.Since41.{CheckpointFileManager, StreamExecution}
import org.apache.spark.sql.statestore.provider.StoreLocation

/** The newest entries of a query's logs, before its run reads them. Each is read at most once. */
private[statestore] final class QueryLogs(query: StreamExecution) {
  import QueryLogs._

  private lazy val offsets: Option[Entry] = newest(StoreLocation.OffsetLog)
  private lazy val commit: Option[Entry] = newest(StoreLocation.CommitLog)

  /** True if a change of several files has begun, which the backend completes. */
  def hasJournal: Boolean = offsets.exists(_.isJournal)

  /** True if no batch was planned yet. */
  def isNew: Boolean = offsets.isEmpty

  /** The provider that the query keeps; None if its first batch has not begun. */
  def provider: Option[String] = offsets.filterNot(_.isJournal).map(settingOf(_, SQLConf.STATE_STORE_PROVIDER_CLASS.key))

  /** The checkpoint format of the query; None without a committed batch. */
  def format: Option[Int] = commit.map { entry =>
    entry.version match {
      case version if version <= 2 => version
      // Version 3 of the log has ids in format v2 alone.
      case _ => if (attempts(entry).exists(_.size > 0)) 2 else 1
    }
  }

  /** True if the commit log has the state of other partitions than the log of offsets has; not known in format v1. */
  def haveOtherPartitions: Boolean = offsets.filterNot(_.isJournal).flatMap(partitionsOf).exists { count =>
    // An operator without grouping columns has one partition.
    commit.toSeq.flatMap(attempts).exists(_.elements.asScala.exists(ids => ids.size != count && ids.size != 1))
  }

  private def newest(log: String): Option[Entry] = {
    val directory = new Path(query.resolvedCheckpointRoot, log)
    val files = Since41.fileManager(directory, query.sparkSession.sessionState.newHadoopConf())
    val batches = try files.list(directory).toSeq.map(_.getPath) catch {
      case _: FileNotFoundException => Nil
    }
    batches.filter(_.getName.matches("\\d{1,18}")).sortBy(_.getName.toLong).lastOption.map(read(files, _))
  }
}

private object QueryLogs {
  // `JOURNAL` in spark_statestore/query/query_checkpoint.py.
  private val Journal = "spark-statestore: the journal"

  private final class Entry(batch: Path, text: String) {
    private val all = text.split('\n')

    val isJournal: Boolean = text.startsWith(Journal)

    lazy val lines: Seq[JsonNode] = all.tail.toSeq.filter(_.startsWith("{")).map(CheckpointClient.mapper.readTree(_))

    def version: Int = all.head.stripPrefix("v").trim.toIntOption.getOrElse(throw new IllegalStateException(
      s"$batch does not begin with the version of a log: it is damaged. Restore it from a backup; nothing was changed."))
  }

  private def read(files: CheckpointFileManager, batch: Path): Entry = {
    val stream = files.open(batch)
    try new Entry(batch, new String(stream.readAllBytes(), UTF_8)) finally stream.close()
  }

  private def settingOf(entry: Entry, key: String): String =
    entry.lines.headOption.fold("")(_.path("conf").path(key).asText)

  private def partitionsOf(entry: Entry): Option[Int] = settingOf(entry, SQLConf.SHUFFLE_PARTITIONS.key).toIntOption

  private def attempts(entry: Entry): Option[JsonNode] = entry.lines.map(_.path("stateUniqueIds")).find(_.isObject)
}
