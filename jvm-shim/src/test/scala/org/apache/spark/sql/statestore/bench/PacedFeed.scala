package org.apache.spark.sql.statestore.bench

import java.util.concurrent.Future
import java.util.concurrent.locks.LockSupport

/**
 * Writes records to a topic of Kafka at a rate, each with its number as value.
 *
 * Guarantees: the record with number n is sent no earlier than n times the interval after the first one, and all are
 * acknowledged when a method returns. Kafka's client is found by name, since it comes with the session's jars, which this
 * jar is not compiled with.
 *
 * @param servers   the brokers
 * @param topic     the topic
 * @param keys      number of different keys
 * @param repeated  every so manieth record has the key of the one before; 0 for none
 */
final class PacedFeed(servers: String, topic: String, keys: Long, repeated: Long) {
  private val loader = Thread.currentThread.getContextClassLoader
  private val producerClass = Class.forName("org.apache.kafka.clients.producer.KafkaProducer", true, loader)
  private val recordClass = Class.forName("org.apache.kafka.clients.producer.ProducerRecord", true, loader)
  private val newRecord = recordClass.getConstructor(classOf[String], classOf[Object], classOf[Object])
  private val send = producerClass.getMethod("send", recordClass)
  private val flush = producerClass.getMethod("flush")
  private val producer = {
    val serializer = "org.apache.kafka.common.serialization.StringSerializer"
    val settings = new java.util.HashMap[String, Object]
    settings.put("bootstrap.servers", servers)
    settings.put("key.serializer", serializer)
    settings.put("value.serializer", serializer)
    producerClass.getConstructor(classOf[java.util.Map[_, _]]).newInstance(settings)
  }

  private var number = 0L

  /** Number of records that were written. */
  def count: Long = number

  /** Writes records; 0 records a second are as many as Kafka takes. */
  def write(records: Long, perSecond: Long): Unit = {
    val start = System.nanoTime()
    val sent = new java.util.ArrayDeque[Future[_]]
    for (index <- 0L until records) {
      if (perSecond > 0) {
        val due = start + index * 1000000000L / perSecond
        while (System.nanoTime() < due) LockSupport.parkNanos(due - System.nanoTime())
      }
      number += 1
      sent.add(send.invoke(producer, newRecord.newInstance(topic, key, number.toString)).asInstanceOf[Future[_]])
      // A failure is an error at once, not after minutes.
      while (!sent.isEmpty && sent.peek.isDone) sent.poll.get()
    }
    flush.invoke(producer)
    sent.forEach(acknowledgement => acknowledgement.get())
  }

  def close(): Unit = producerClass.getMethod("close").invoke(producer)

  private def key: String = ((if (repeated > 0 && number % repeated == 0) number - 1 else number) % keys).toString
}
