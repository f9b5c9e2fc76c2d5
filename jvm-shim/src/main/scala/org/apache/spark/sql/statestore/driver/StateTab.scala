package org.apache.spark.sql.statestore.driver

import java.util.UUID

import scala.util.Try
import scala.xml.{Node, NodeSeq}

import jakarta.servlet.http.HttpServletRequest

import org.apache.spark.sql.statestore.provider.StoreMetrics
import org.apache.spark.ui.{SparkUI, SparkUITab, UIUtils, WebUIPage}
import org.apache.spark.util.Utils

/**
 * The tab "State" of an application's UI: its streaming queries and their stateful operators.
 *
 * @param queries  returns the queries as they are now, the newest first
 */
private[statestore] final class StateTab(ui: SparkUI, val queries: () => Seq[MonitoredQuery]) extends SparkUITab(ui, "state") {
  attachPage(new QueriesPage(this))
  attachPage(new QueryPage(this))

  def attach(): Unit = ui.attachTab(this)

  def linkTo(request: HttpServletRequest, query: MonitoredQuery): String =
    UIUtils.prependBaseUri(request, basePath, s"/$prefix/query/?id=${query.id}")
}

/** All queries, each with its operators as of its last batch. */
private final class QueriesPage(tab: StateTab) extends WebUIPage("") {
  override def render(request: HttpServletRequest): Seq[Node] = {
    val queries = tab.queries().sortBy(!_.isActive)
    val content =
      if (queries.isEmpty) <p>No streaming query has started yet.</p>
      else queries.flatMap { query =>
        <h4><a href={tab.linkTo(request, query)}>{query.title}</a></h4> ++ StateTables.summary(query) ++ StateTables.operators(query)
      }
    UIUtils.headerSparkPage(request, "State of streaming queries", content, tab)
  }
}

/** One query: its operators, charts of its last batches, and a table of them. */
private final class QueryPage(tab: StateTab) extends WebUIPage("query") {
  override def render(request: HttpServletRequest): Seq[Node] = {
    val requestedQuery = Option(request.getParameter("id")).flatMap(id => Try(UUID.fromString(id)).toOption)
      .flatMap(id => tab.queries().find(_.id == id))
    val content = requestedQuery.fold[Seq[Node]](
      <p>There is no such query: this application did not start it, or has started more than {QueryMonitor.MaxQueries} since.</p>
    ) { query =>
      StateTables.summary(query) ++ StateTables.operators(query) ++ StateCharts.charts(query) ++ StateTables.batches(query)
    }
    UIUtils.headerSparkPage(request, s"State of ${requestedQuery.fold("a query")(_.title)}", content, tab)
  }
}

/** Tables of a query's figures. A cell's key for sorting is the exact number. */
private object StateTables {
  import QueryMonitor._

  private final case class Column(head: String, name: String, format: Long => String)

  private val operatorColumns = Seq(
    Column("Rows", RowsTotal, count),
    Column("Rows of the largest partition", StoreMetrics.MaxRows.name, count),
    Column("Rows updated", RowsUpdated, count),
    Column("Memory", MemoryUsed, bytes),
    Column("Mapped files", StoreMetrics.MappedBytes.name, bytes),
    Column("Longest chain", StoreMetrics.ChainLength.name, count),
    Column("Oldest snapshot (versions)", StoreMetrics.SnapshotAge.name, count),
    Column("Load", StoreMetrics.LoadTime.name, micros),
    Column("Encode", StoreMetrics.EncodeTime.name, micros),
    Column("Send", StoreMetrics.SendTime.name, micros),
    Column("Store", StoreMetrics.StoreTime.name, micros),
    Column("Bytes written", StoreMetrics.BytesWritten.name, bytes),
    Column("Objects written", StoreMetrics.ObjectsWritten.name, count),
    Column("Backend memory", StoreMetrics.BackendMemory.name, bytes))

  private val batchColumns = operatorColumns.filterNot(column => column.name == StoreMetrics.MappedBytes.name)

  def summary(query: MonitoredQuery): NodeSeq = {
    val state = if (query.isActive) "running" else if (query.error.isDefined) "failed" else "stopped"
    val items = Seq(
      "Status" -> <span>{state}</span>,
      "Query id" -> <span>{query.id}</span>,
      "Run id" -> <span>{query.runId} (run {query.runs} in this application)</span>,
      "Checkpoint location" -> <span>{query.checkpoint.getOrElse("unknown")}</span>,
      "Last batch" -> query.last.fold(<span>none yet</span>) { batch =>
        <span>{batch.batchId}, started {batch.timestamp}, took {UIUtils.formatDuration(batch.durationMs)}</span>
      },
      "Backend restarts" -> <span>{query.restarts}</span>,
      "Storage retries" -> <span>{query.retries}</span>,
      "Repaired streams" -> <span>{query.repaired}</span>) ++ query.merged.map { merged =>
      "Merged files" -> <span>{count(merged.logicalFiles)} logical in {count(merged.physicalFiles)} physical files,
        {bytes(merged.liveBytes)} of {bytes(merged.storageBytes)} in use</span>
    }
    <ul class="list-unstyled">{(items ++ places(query)).map { case (name, value) => <li><strong>{name}: </strong>{value}</li> }}</ul> ++
      query.error.fold(NodeSeq.Empty)(error => <pre class="state-error">{error}</pre>)
  }

  // On a cluster.
  private def places(query: MonitoredQuery): Option[(String, Node)] =
    Some(Rebalancer.placesOf(query.runId.toString)).filter(_.nonEmpty).map { partitions =>
      val executors = partitions.toSeq.sortBy { case (executor, _) => (executor.length, executor) }
      "Partitions by executor" -> <span>{executors.map { case (executor, count) => s"$executor: $count" }.mkString(", ")}</span>
    }

  def operators(query: MonitoredQuery): NodeSeq = query.last match {
    case Some(batch) if batch.operators.nonEmpty =>
      table(Seq("Operator", "Partitions"), operatorColumns, batch.operators.zipWithIndex.map { case (operator, number) =>
        (Seq(s"$number: ${operator.name}", operator.partitions.toString), operator)
      })
    case Some(_) => <p>The query has no stateful operator.</p>
    case None => NodeSeq.Empty
  }

  /** The newest batch first. */
  def batches(query: MonitoredQuery): NodeSeq = {
    val rows = for {
      batch <- query.batches.reverse
      (operator, number) <- batch.operators.zipWithIndex
      times = Seq(batch.timestamp, batch.durationMs.toString, batch.commitLogMs.toString)
    } yield (batch.batchId.toString +: times :+ s"$number: ${operator.name}", operator)
    if (rows.isEmpty) NodeSeq.Empty
    else <h4>Last {query.batches.size} batches</h4> ++ table(
      Seq("Batch", "Started", "Duration (ms)", "Commit log (ms)", "Operator"), batchColumns, rows)
  }

  private def table(
      heads: Seq[String], columns: Seq[Column], rows: Seq[(Seq[String], OperatorFigures)]): NodeSeq =
    <table class="table table-bordered table-sm table-striped sortable">
      <thead><tr>{(heads ++ columns.map(_.head)).map(head => <th>{head}</th>)}</tr></thead>
      <tbody>{rows.map { case (labels, figures) =>
        <tr>{labels.map(label => <td>{label}</td>)}{columns.map(column => cell(column, figures(column.name)))}</tr>
      }}</tbody>
    </table>

  // A query may keep its state in another store, which has other figures.
  private def cell(column: Column, value: Option[Long]): Node = value match {
    case Some(number) =>
      <td data-metric={column.name} sorttable_customkey={number.toString}>{column.format(number)}</td>
    case None => <td data-metric={column.name} sorttable_customkey="-1">–</td>
  }

  def count(value: Long): String = String.format(java.util.Locale.ROOT, "%,d", Long.box(value))

  def bytes(value: Long): String = Utils.bytesToString(value)

  def micros(value: Long): String =
    if (value < 1000) s"$value µs" else UIUtils.formatDuration(math.round(value / 1000.0))
}
