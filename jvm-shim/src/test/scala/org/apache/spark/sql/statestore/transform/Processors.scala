package org.apache.spark.sql.statestore.transform

import java.time.Duration

import org.apache.spark.sql.{DataFrame, Encoder, Encoders}
import org.apache.spark.sql.streaming._

/** An instruction to an `Interpreter`; `seq` orders the rows of a batch. */
case class Step(k: String, seq: Long, op: String, n: Long, v: String)

/** Output row of an `Interpreter` for rows or a timer. */
case class Said(k: String, event: String, said: String)

/**
 * Stateful processor that executes each row's `op` on its state and outputs the state: the Scala half of
 * tests/spark/processors.py. It has those of the variables `one`, `many` and `named` that are in `has`.
 */
class Interpreter(has: Set[String], gone: Set[String], ttl: Long, byEventTime: Boolean, start: Long)
  extends StatefulProcessorWithInitialState[String, Step, Said, Step] {

  @transient private var one: Option[ValueState[String]] = None
  @transient private var many: Option[ListState[String]] = None
  @transient private var named: Option[MapState[(Long, String), String]] = None

  private implicit val text: Encoder[String] = Encoders.STRING
  private implicit val name: Encoder[(Long, String)] = Encoders.tuple(Encoders.scalaLong, Encoders.STRING)

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    val lives = if (ttl > 0) TTLConfig(Duration.ofMillis(ttl)) else TTLConfig.NONE
    gone.foreach(getHandle.deleteIfExists)
    one = if (has("one")) Some(getHandle.getValueState[String]("one", lives)) else None
    many = if (has("many")) Some(getHandle.getListState[String]("many", lives)) else None
    named =
      if (has("named")) Some(getHandle.getMapState[(Long, String), String]("named", lives)) else None
  }

  override def handleInitialState(key: String, step: Step, times: TimerValues): Unit = {
    one.foreach(_.update(step.v))
    many.foreach(_.appendValue(step.v))
    named.foreach(_.updateValue((-1L, step.v), step.v))
  }

  override def handleInputRows(key: String, steps: Iterator[Step], times: TimerValues): Iterator[Said] = {
    // Rows are only valid until the next one.
    steps.toSeq.sortBy(_.seq).foreach(take(_, times))
    Iterator(Said(key, "rows", content))
  }

  override def handleExpiredTimer(key: String, times: TimerValues, timer: ExpiredTimerInfo): Iterator[Said] = {
    val at = timer.getExpiryTimeInMs()
    val found = content
    if (!byEventTime) {
      getHandle.registerTimer(now(times) + 1)
    } else if (at % 4 == 1) {
      // One that is due already, and one that will be.
      getHandle.registerTimer(at - 1)
      getHandle.registerTimer(at + 600001)
    }
    Iterator(Said(key, if (byEventTime) s"timer $at" else "timer", found))
  }

  private def now(times: TimerValues): Long =
    if (byEventTime) start else times.getCurrentProcessingTimeInMs()

  private def take(step: Step, times: TimerValues): Unit = step.op match {
    case "set" => one.foreach(_.update(step.v))
    case "clear" => one.foreach(_.clear())
    case "append" => many.foreach(_.appendValue(step.v))
    case "extend" => many.foreach(_.appendList(Array.fill(1 + (step.n % 3).toInt)(step.v)))
    case "replace" => many.foreach(_.put(Array(step.v, "", step.v)))
    case "clear_list" => many.foreach(_.clear())
    case "put" => named.foreach(_.updateValue((step.n % 4, step.v), step.v))
    case "remove" => named.foreach(map => map.keys().filter(_._1 == step.n % 4).foreach(map.removeKey))
    case "clear_map" => named.foreach(_.clear())
    case "change_while_reading" =>
      for (list <- many; value <- list.get()) list.appendValue(value + "!")
      for (map <- named; (key, value) <- map.iterator()) map.updateValue((key._1 + 4, key._2), value)
    case "timer" => getHandle.registerTimer(now(times) + step.n)
    case "no_timer" => getHandle.listTimers().toSeq.sorted.headOption.foreach(getHandle.deleteTimer)
  }

  private def content: String = {
    val timers = getHandle.listTimers().toSeq.sorted
    Seq(
      one.map(state => if (state.exists()) state.get() else "nothing"),
      many.map(state => (state.exists(), state.get().mkString("[", ", ", "]"))),
      named.map { map =>
        val found = map.iterator().toSeq
        require(map.exists() == found.nonEmpty && found.forall { case (key, value) => map.getValue(key) == value })
        require(map.keys().toSet == found.map(_._1).toSet && map.values().size == found.size)
        found.map(_.toString).sorted.mkString("[", ", ", "]")
      },
      if (byEventTime) timers else timers.size).mkString("; ")
  }
}

/** Stateful processor that emits the number of the rows of a key, with each row. */
class Counting extends StatefulProcessor[Int, Int, (Int, Long)] {
  @transient private var count: ValueState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    count = getHandle.getValueState[Long]("count", TTLConfig.NONE)(Encoders.scalaLong)

  override def handleInputRows(key: Int, rows: Iterator[Int], times: TimerValues): Iterator[(Int, Long)] =
    rows.map { _ =>
      count.update((if (count.exists()) count.get() else 0L) + 1)
      (key, count.get())
    }
}

/** Queries of Scala's transformWithState for the tests in Python. */
object Processors {
  private implicit val steps: Encoder[Step] = Encoders.product[Step]
  private implicit val said: Encoder[Said] = Encoders.product[Said]
  private implicit val text: Encoder[String] = Encoders.STRING

  /** An `Interpreter` over rows of `Step`; variables are given as their names with commas between. */
  def interpreted(
      rows: DataFrame,
      initial: DataFrame,
      has: String,
      gone: String,
      ttl: Long,
      timeMode: String,
      start: Long,
      mode: String): DataFrame = {
    def names(list: String): Set[String] = list.split(',').filter(_.nonEmpty).toSet
    val (times, byEventTime) = timeMode match {
      case "eventTime" => (TimeMode.EventTime(), true)
      case "processingTime" => (TimeMode.ProcessingTime(), false)
    }
    rows.as[Step].groupByKey(_.k).transformWithState(
      new Interpreter(names(has), names(gone), ttl, byEventTime, start),
      times,
      if (mode == "update") OutputMode.Update() else OutputMode.Append(),
      initial.as[Step].groupByKey(_.k)).toDF()
  }

  /** A `Counting` over whole numbers, by their remainder. */
  def counted(numbers: DataFrame, groups: Int): DataFrame = {
    implicit val number: Encoder[Int] = Encoders.scalaInt
    implicit val counts: Encoder[(Int, Long)] = Encoders.tuple(Encoders.scalaInt, Encoders.scalaLong)
    numbers.as[Int].groupByKey(_ % groups).transformWithState(new Counting, TimeMode.None(), OutputMode.Update())
      .toDF("k", "n")
  }
}
