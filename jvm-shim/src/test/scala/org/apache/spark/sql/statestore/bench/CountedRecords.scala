package org.apache.spark.sql.statestore.bench

import org.apache.spark.sql.{DataFrame, Encoder, Encoders}
import org.apache.spark.sql.streaming._

/** A record with its time in the source's topic. */
case class TimedRecord(key: String, value: Array[Byte], sourceMillis: Long)

/** Stateful processor that counts the records of a key, and passes each on. */
class CountedRecords extends StatefulProcessor[String, TimedRecord, TimedRecord] {
  @transient private var count: ValueState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    count = getHandle.getValueState[Long]("count", TTLConfig.NONE)(Encoders.scalaLong)

  override def handleInputRows(
      key: String, records: Iterator[TimedRecord], times: TimerValues): Iterator[TimedRecord] =
    records.map { record =>
      count.update(count.get() + 1)
      record
    }
}

object CountedRecords {
  /** A `CountedRecords` over records, in processing time. */
  def transform(records: DataFrame): DataFrame = {
    implicit val record: Encoder[TimedRecord] = Encoders.product[TimedRecord]
    implicit val text: Encoder[String] = Encoders.STRING
    records.as[TimedRecord].groupByKey(_.key)
      .transformWithState(new CountedRecords, TimeMode.ProcessingTime(), OutputMode.Update()).toDF()
  }
}
