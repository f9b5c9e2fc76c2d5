package org.apache.spark.sql.statestore.transform

import java.time.Duration

import org.apache.spark.sql.{DataFrame, Encoder, Encoders}
import org.apache.spark.sql.streaming._

/** The values of an `Evolving` in its first run. */
case class Narrow(n: Int, v: String, inner: NarrowInner, items: Seq[Int], byName: Map[String, Int])
case class NarrowInner(a: Int, b: Option[Float])

/** With columns more, and wider numbers; nested ones too. */
case class Wide(
    extra: Double, n: Long, v: String, inner: WideInner, items: Seq[Long], byName: Map[String, Long], since: Option[Long])
case class WideInner(c: Option[Boolean], a: Long, b: Option[Double])

/** With columns less, in another order, and one that is renamed. */
case class Short(w: String, inner: WideInner, n: Long)

/**
 * Stateful processor whose values change their schema between runs: the Scala half of
 * tests/spark/evolving_processor.py.
 */
class Evolving[T](valueOf: Step => T, ttl: Long)(implicit values: Encoder[T]) extends StatefulProcessor[String, Step, Output] {
  @transient private var valueState: ValueState[T] = _
  @transient private var listState: ListState[T] = _
  @transient private var mapState: MapState[String, T] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    val lives = if (ttl > 0) TTLConfig(Duration.ofMillis(ttl)) else TTLConfig.NONE
    valueState = getHandle.getValueState[T]("one", values, lives)
    listState = getHandle.getListState[T]("many", values, lives)
    mapState = getHandle.getMapState[String, T]("named", Encoders.STRING, values, lives)
  }

  override def handleInputRows(key: String, steps: Iterator[Step], times: TimerValues): Iterator[Output] = {
    val before = content
    steps.toSeq.sortBy(_.seq).foreach { step =>
      step.op match {
        case "set" => valueState.update(valueOf(step))
        case "append" => listState.appendValue(valueOf(step))
        case "put" => mapState.updateValue(step.v, valueOf(step))
      }
    }
    Iterator(Output(key, "rows", s"$before; $content"))
  }

  private def content: String =
    Seq(Option(valueState.get()), listState.get().toSeq, mapState.iterator().map(_.toString).toSeq.sorted).mkString(", ")
}

/** Queries with an `Evolving` for the tests in Python. */
object EvolvingProcessors {
  private implicit val steps: Encoder[Step] = Encoders.product[Step]
  private implicit val outputs: Encoder[Output] = Encoders.product[Output]
  private implicit val text: Encoder[String] = Encoders.STRING

  /** An `Evolving` over rows of `Step`, with the schema "narrow", "wide" or "short". */
  def evolving(rows: DataFrame, schema: String, ttl: Long): DataFrame = schema match {
    case "narrow" => query(rows, narrow, ttl)(Encoders.product[Narrow])
    case "wide" => query(rows, wide, ttl)(Encoders.product[Wide])
    case "short" => query(rows, short, ttl)(Encoders.product[Short])
  }

  private val narrow = (step: Step) => Narrow(
    step.n.toInt, step.v, NarrowInner(step.n.toInt, Some(0.5f)), Seq(step.n.toInt, -1), Map(step.v -> step.n.toInt))

  private val wide = (step: Step) => Wide(
    step.n / 2.0, step.n, step.v, WideInner(Some(true), step.n, Some(0.1)), Seq(step.n), Map.empty, Some(step.seq))

  private val short = (step: Step) => Short(step.v, WideInner(Some(true), step.n, None), step.n)

  private def query[T](rows: DataFrame, valueOf: Step => T, ttl: Long)(implicit values: Encoder[T]): DataFrame =
    rows.as[Step].groupByKey(_.k).transformWithState(
      new Evolving[T](valueOf, ttl), if (ttl > 0) TimeMode.ProcessingTime() else TimeMode.None(), OutputMode.Update()).toDF()
}
