package org.apache.spark.sql.statestore

import java.sql.Timestamp

import org.apache.spark.sql.{DataFrame, Encoder, Encoders}
import org.apache.spark.sql.streaming.{GroupState, GroupStateTimeout, OutputMode}

/**
 * Query with Scala's flatMapGroupsWithState, which PySpark lacks, over rows of a key, seconds and a timestamp.
 *
 * Guarantees: emits a group with its count whenever it gets rows, and once more, negated, after ten minutes of
 * event time without any; its state is then removed.
 */
object GroupCounts {
  private type Event = (String, Long, Timestamp)

  private implicit val events: Encoder[Event] =
    Encoders.tuple(Encoders.STRING, Encoders.scalaLong, Encoders.TIMESTAMP)
  private implicit val keys: Encoder[String] = Encoders.STRING
  private implicit val counts: Encoder[Long] = Encoders.scalaLong
  private implicit val results: Encoder[(String, Long)] = Encoders.tuple(Encoders.STRING, Encoders.scalaLong)

  def over(rows: DataFrame): DataFrame =
    rows
      .as[Event]
      .groupByKey((event: Event) => event._1)
      .flatMapGroupsWithState(OutputMode.Append, GroupStateTimeout.EventTimeTimeout)(update)
      .toDF("k", "n")

  private val update: (String, Iterator[Event], GroupState[Long]) => Iterator[(String, Long)] =
    (key, events, state) => {
      val before = state.getOption.getOrElse(0L)
      if (state.hasTimedOut) {
        state.remove()
        Iterator((key, -before))
      } else {
        val times = events.map(_._2).toSeq
        state.update(before + times.size)
        state.setTimeoutTimestamp(math.max(times.max * 1000, state.getCurrentWatermarkMs()) + 600000)
        Iterator((key, before + times.size))
      }
    }
}
