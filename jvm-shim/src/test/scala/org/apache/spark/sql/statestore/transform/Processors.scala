package org.apache.spark.sql.statestore.transform

import java.time.Duration

import org.apache.spark.sql.{DataFrame, Encoder, Encoders}
import org.apache.spark.sql.streaming._

/** An instruction to an `Interpreter`; `seq` orders the rows of a batch. */
case class Step(k: String, seq: Long, op: String, n: Long, v: String)

/** Output row of an `Interpreter` for rows or a timer. The recorded rows in tests/spark/golden have the names of its columns. */
case class Output(k: String, event: String, said: String)

/**
 * Stateful processor that executes each row's `op` on its state and outputs the state: the Scala half of
 * tests/spark/processors.py. It has those of the variables `one`, `many` and `named` that are in `has`.
 */
class Interpreter(has: Set[String], gone: Set[String], ttl: Long, byEventTime: Boolean, start: Long)
  extends StatefulProcessorWithInitialState[String, Step, Output, Step] {

  @transient private var valueState: Option[ValueState[String]] = None
  @transient private var listState: Option[ListState[String]] = None
  @transient private var mapState: Option[MapState[(Long, String), String]] = None

  private implicit val text: Encoder[String] = Encoders.STRING
  private implicit val name: Encoder[(Long, String)] = Encoders.tuple(Encoders.scalaLong, Encoders.STRING)

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    val lives = if (ttl > 0) TTLConfig(Duration.ofMillis(ttl)) else TTLConfig.NONE
    gone.foreach(getHandle.deleteIfExists)
    valueState = if (has("one")) Some(getHandle.getValueState[String]("one", lives)) else None
    listState = if (has("many")) Some(getHandle.getListState[String]("many", lives)) else None
    mapState =
      if (has("named")) Some(getHandle.getMapState[(Long, String), String]("named", lives)) else None
  }

  override def handleInitialState(key: String, step: Step, times: TimerValues): Unit = {
    valueState.foreach(_.update(step.v))
    listState.foreach(_.appendValue(step.v))
    mapState.foreach(_.updateValue((-1L, step.v), step.v))
  }

  override def handleInputRows(key: String, steps: Iterator[Step], times: TimerValues): Iterator[Output] = {
    // Rows are only valid until the next one.
    steps.toSeq.sortBy(_.seq).foreach(take(_, times))
    Iterator(Output(key, "rows", content))
  }

  override def handleExpiredTimer(key: String, times: TimerValues, timer: ExpiredTimerInfo): Iterator[Output] = {
    val at = timer.getExpiryTimeInMs()
    val before = content
    if (!byEventTime) {
      getHandle.registerTimer(now(times) + 1)
    } else if (at % 4 == 1) {
      // One that is due already, and one that will be.
      getHandle.registerTimer(at - 1)
      getHandle.registerTimer(at + 600001)
    }
    Iterator(Output(key, if (byEventTime) s"timer $at" else "timer", before))
  }

  private def now(times: TimerValues): Long =
    if (byEventTime) start else times.getCurrentProcessingTimeInMs()

  private def take(step: Step, times: TimerValues): Unit = step.op match {
    case "set" => valueState.foreach(_.update(step.v))
    case "clear" => valueState.foreach(_.clear())
    case "append" => listState.foreach(_.appendValue(step.v))
    case "extend" => listState.foreach(_.appendList(Array.fill(1 + (step.n % 3).toInt)(step.v)))
    case "replace" => listState.foreach(_.put(Array(step.v, "", step.v)))
    case "clear_list" => listState.foreach(_.clear())
    case "put" => mapState.foreach(_.updateValue((step.n % 4, step.v), step.v))
    case "remove" => mapState.foreach(map => map.keys().filter(_._1 == step.n % 4).foreach(map.removeKey))
    case "clear_map" => mapState.foreach(_.clear())
    case "change_while_reading" =>
      for (list <- listState; value <- list.get()) list.appendValue(value + "!")
      for (map <- mapState; (key, value) <- map.iterator()) map.updateValue((key._1 + 4, key._2), value)
    case "timer" => getHandle.registerTimer(now(times) + step.n)
    case "no_timer" => getHandle.listTimers().toSeq.sorted.headOption.foreach(getHandle.deleteTimer)
  }

  private def content: String = {
    val timers = getHandle.listTimers().toSeq.sorted
    Seq(
      valueState.map(state => if (state.exists()) state.get() else "nothing"),
      listState.map(state => (state.exists(), state.get().mkString("[", ", ", "]"))),
      mapState.map { map =>
        val entries = map.iterator().toSeq
        require(map.exists() == entries.nonEmpty && entries.forall { case (key, value) => map.getValue(key) == value })
        require(map.keys().toSet == entries.map(_._1).toSet && map.values().size == entries.size)
        entries.map(_.toString).sorted.mkString("[", ", ", "]")
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
  private implicit val outputs: Encoder[Output] = Encoders.product[Output]
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
