package org.apache.spark.sql.statestore.driver

import java.util.Locale

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.streaming.sources.{WriteToMicroBatchDataSource, WriteToMicroBatchDataSourceV1}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.{InvalidOptionException, StateStoreExtensions}
import org.apache.spark.sql.statestore.compat.Since41
import org.apache.spark.sql.statestore.provider.BackendOptions

/**
 * Validation of the options of a streaming query when a batch is planned: on the driver, before its first task. A
 * failure is the query's exception.
 *
 * It is a columnar rule because these see the physical plan of each batch, with the stateful operators and their
 * provider. Analysis sees neither, nor the options of a sink.
 */
private[statestore] final class QueryOptionsRule(session: SparkSession) extends ColumnarRule {
  import QueryOptionsRule._

  override val preColumnarTransitions: Rule[SparkPlan] = new Rule[SparkPlan] {
    override val ruleName: String = "options of spark-statestore"

    override def apply(plan: SparkPlan): SparkPlan = {
      if (RunningQuery.id(session).isDefined) {
        sinkOptions.foreach { case (key, value) => requireForSink(key, value) }
        plan.find(keepsState).foreach { operator =>
          RunningQuery.of(session).foreach { query =>
            StatePartitions.require(query, plan)
            CheckpointFormat.require(query, operator.conf)
          }
          OptionCheck.requireUsable(session, BackendOptions.parse(session.conf.getAll))
          Rebalancer.planned(session, plan)
        }
      }
      plan
    }
  }

  private def sinkOptions: Map[String, String] = RunningQuery.of(session).map(_.logicalPlan) match {
    case Some(write: WriteToMicroBatchDataSource) => write.writeOptions
    case Some(write: WriteToMicroBatchDataSourceV1) => write.writeOptions
    case _ => Map.empty
  }

  private def requireForSink(key: String, value: String): Unit = {
    val isProvider = key.equalsIgnoreCase(ProviderKey) && StateStoreExtensions.isOurs(value)
    val option =
      if (isProvider) Some(ProviderKey)
      else if (key.toLowerCase(Locale.ROOT).startsWith(LowerPrefix)) Some(key.drop(LowerPrefix.length)).map(fullName)
      else OfStateAlone.find(_.equalsIgnoreCase(key)).filter(_ => usesOurs).map(fullName)
    option.foreach { name =>
      throw new InvalidOptionException(
        s"'$key' was given to writeStream.option, and the state store takes its options from the session alone: it " +
          "would be ignored. Take it out there, and set it in the session before the query starts: " +
          s"""spark.conf.set("$name", "${BackendOptions.withoutPassword(value)}"). Nothing was changed.""")
    }
  }

  private def usesOurs: Boolean = session.conf.getOption(ProviderKey).exists(StateStoreExtensions.isOurs)
}

private object QueryOptionsRule {
  private val ProviderKey = SQLConf.STATE_STORE_PROVIDER_CLASS.key
  private val LowerPrefix = BackendOptions.Prefix.toLowerCase(Locale.ROOT)

  // An option without the prefix may be the sink's own, as compression is; these have no meaning for a sink.
  private val OfStateAlone = Seq("checkpointsDir", "savepointsDir", "maxStateSize", "fileStateThreshold")

  private def fullName(name: String): String = BackendOptions.Prefix + BackendOptions.spelling(name).getOrElse(name)

  private def keepsState(plan: SparkPlan): Boolean = plan match {
    case stateful: SparkPlan with Since41.StatefulOperator => StateStoreExtensions.keepsState(stateful)
    case _ => false
  }
}
