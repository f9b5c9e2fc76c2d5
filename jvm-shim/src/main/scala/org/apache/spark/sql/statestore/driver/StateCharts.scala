package org.apache.spark.sql.statestore.driver

import scala.xml.{Elem, NodeSeq}

import org.apache.spark.sql.statestore.provider.StoreMetrics

/** Line charts of a query's last batches, as SVG. */
private object StateCharts {
  import QueryMonitor._
  import StateTables.{bytes, count, micros}

  private final case class Line(label: String, color: String, values: Seq[Long])

  private final val Width = 300.0
  private final val Height = 80.0
  // So that the line of the greatest value is not cut off.
  private final val Margin = 2.0
  private val colors = Seq("#1f77b4", "#ff7f0e", "#2ca02c")

  def charts(query: MonitoredQuery): NodeSeq = {
    val duration = chart(
      "Batch duration", Seq(Line("", colors.head, query.batches.map(_.durationMs))), value => micros(value * 1000))
    val operators = query.last.fold(NodeSeq.Empty) { last =>
      last.operators.zipWithIndex.flatMap { case (operator, number) => <h4>{number}: {operator.name}</h4> ++ row(query, number) }
    }
    <div>{duration}</div> ++ operators
  }

  private def row(query: MonitoredQuery, number: Int): Elem = {
    def lines(named: (String, String)*) = named.zip(colors).map { case ((label, name), color) =>
      Line(label, color, query.batches.flatMap(_.operators.lift(number)).flatMap(_(name)))
    }
    <div>
      {chart("Rows", lines("" -> RowsTotal), count)}
      {chart("Memory", lines("" -> MemoryUsed), bytes)}
      {chart("Commit, sum over partitions", lines(
        "encode" -> StoreMetrics.EncodeTime.name, "send" -> StoreMetrics.SendTime.name,
        "store" -> StoreMetrics.StoreTime.name), micros)}
      {chart("Bytes written", lines("" -> StoreMetrics.BytesWritten.name), bytes)}
      {chart("Objects written", lines("" -> StoreMetrics.ObjectsWritten.name), count)}
      {chart("Longest chain", lines("" -> StoreMetrics.ChainLength.name), count)}
    </div>
  }

  /** Empty if there is nothing to draw, as for a figure that another store does not have. */
  private def chart(title: String, lines: Seq[Line], format: Long => String): NodeSeq = {
    val drawn = lines.filter(_.values.nonEmpty)
    if (drawn.isEmpty) {
      NodeSeq.Empty
    } else {
      val top = drawn.flatMap(_.values).max
      <figure style="display: inline-block; margin: 0 1.5em 1em 0">
        <figcaption><strong>{title}</strong>, at most {format(top)}{drawn.map { line =>
          <span style={s"color: ${line.color}"}> {line.label} {format(line.values.last)}</span>
        }}</figcaption>
        <svg role="img" aria-label={title} width={Width.toInt.toString} height={Height.toInt.toString}
             viewBox={s"0 0 ${Width.toInt} ${Height.toInt}"} style="border: 1px solid #8886">{drawn.map { line =>
          <polyline fill="none" stroke={line.color} stroke-width="1.5" points={points(line.values, top)}/>
        }}</svg>
      </figure>
    }
  }

  private def points(values: Seq[Long], top: Long): String = {
    val step = Width / math.max(1, values.size - 1)
    def y(value: Long) = Height - Margin - (Height - 2 * Margin) * value / math.max(1L, top)
    // A line of one point would not be seen.
    val drawn = if (values.size == 1) values ++ values else values
    drawn.zipWithIndex.map { case (value, at) => f"${at * step}%.1f,${y(value)}%.1f" }.mkString(" ")
  }
}
