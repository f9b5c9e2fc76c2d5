package org.apache.spark.sql.statestore.provider

import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.driver.{DriverConnection, StoresOpened}
import org.apache.spark.sql.types.StructType

/**
 * The stores of one name of an operator, as Spark describes them to a provider: they differ by their partition alone.
 *
 * @param root  Spark's directory of the query's state
 * @param run   the run of the query
 */
private[statestore] final case class StoreKind(
    root: String,
    operator: Long,
    name: String,
    run: String,
    keySchema: StructType,
    valueSchema: StructType,
    keyStateEncoderSpec: KeyStateEncoderSpec,
    useColumnFamilies: Boolean,
    conf: StateStoreConf,
    useMultipleValuesPerKey: Boolean,
    stateSchemaProvider: Option[StateSchemaProvider]) {

  def id(partition: Int): StateStoreId = StateStoreId(root, operator, partition, name)
}

private[statestore] object StoreKind extends Logging {
  // Those that the driver knows, by run, operator and name.
  private val kindsOnDriver = ConcurrentHashMap.newKeySet[(String, Long, String)]
  private final val MostKnown = 10000

  /** Has the driver know the stores of an executor, once for each kind: it can then have another executor load one. */
  def opened(kind: StoreKind): Unit =
    if (kind.run.nonEmpty && !kindsOnDriver.contains((kind.run, kind.operator, kind.name))) {
      DriverConnection.find().filter(_.executorID != SparkContext.DRIVER_IDENTIFIER).foreach { driver =>
        if (kindsOnDriver.size > MostKnown) kindsOnDriver.clear()
        kindsOnDriver.add((kind.run, kind.operator, kind.name))
        try driver.send(StoresOpened(kind)) catch {
          case NonFatal(e) => logDebug(s"the driver does not know the stores of operator ${kind.operator}", e)
        }
      }
    }
}
