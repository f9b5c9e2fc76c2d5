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
class Evolving[T](made: Step => T, ttl: Long)(implicit values: Encoder[T]) extends StatefulProcessor[String, Step, Said] {
  @transient private var one: ValueState[T] = _
  @transient private var many: ListState[T] = _
  @transient private var named: MapState[String, T] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    val lives = if (ttl > 0) TTLConfig(Duration.ofMillis(ttl)) else TTLConfig.NONE
    one = getHandle.getValueState[T]("one", values, lives)
    many = getHandle.getListState[T]("many", values, lives)
    named = getHandle.getMapState[String, T]("named", Encoders.STRING, values, lives)
  }

  override def handleInputRows(key: String, steps: Iterator[Step], times: TimerValues): Iterator[Said] = {
    val before = content
    steps.toSeq.sortBy(_.seq).foreach { step =>
      step.op match {
        case "set" => one.update(made(step))
        case "append" => many.appendValue(made(step))
        case "put" => named.updateValue(step.v, made(step))
      }
    }
    Iterator(Said(key, "rows", s"$before; $content"))
  }

  private def content: String =
    Seq(Option(one.get()), many.get().toSeq, named.iterator().map(_.toString).toSeq.sorted).mkString(", ")
}

/** Queries with an `Evolving` for the tests in Python. */
object EvolvingProcessors {
  private implicit val steps: Encoder[Step] = Encoders.product[Step]
  private implicit val said: Encoder[Said] = Encoders.product[Said]
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

  private def query[T](rows: DataFrame, made: Step => T, ttl: Long)(implicit values: Encoder[T]): DataFrame =
    rows.as[Step].groupByKey(_.k).transformWithState(
      new Evolving[T](made, ttl), if (ttl > 0) TimeMode.ProcessingTime() else TimeMode.None(), OutputMode.Update()).toDF()
}
