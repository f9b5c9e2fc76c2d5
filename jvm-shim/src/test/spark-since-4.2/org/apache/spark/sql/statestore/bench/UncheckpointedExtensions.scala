package org.apache.spark.sql.statestore.bench

import org.apache.spark.sql.{classic, SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.statestore.transform.{CheckpointTransformWithStateExec, CheckpointTransformWithStateInPySparkExec}
import org.apache.spark.sql.streaming.StreamingQueryListener

/**
 * Session extension that lets transformWithState and queries in real-time mode run on
 * [[UncheckpointedStateStoreProvider]]: Spark requires the class name of its RocksDB provider for both.
 *
 * Guarantees: plans of queries on other providers are unchanged. Queries of a session get the provider only if
 * the session has the setting [[UncheckpointedExtensions.RealTimeMode]] and no provider class.
 */
final class UncheckpointedExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    extensions.injectColumnar(_ => UncheckpointedRule)
    extensions.injectCheckRule(session => plan => if (plan.isStreaming) UncheckpointedExtensions.attend(session))
  }
}

private object UncheckpointedExtensions {
  final val RealTimeMode = "spark.sql.streaming.stateStore.bench.realTimeMode"

  val provider: String = classOf[UncheckpointedStateStoreProvider].getName

  def attend(session: SparkSession): Unit = session match {
    case own: classic.SparkSession if own.conf.getOption(RealTimeMode).contains("true") => synchronized {
      val streams = own.streams
      if (!streams.listListeners().exists(_.isInstanceOf[Starts])) streams.addListener(new Starts(own))
    }
    case _ =>
  }

  // Sets the class in the query's copy of the session, before the query reads it.
  private final class Starts(session: classic.SparkSession) extends StreamingQueryListener {
    override def onQueryStarted(event: StreamingQueryListener.QueryStartedEvent): Unit = {
      val query = session.sharedState.activeStreamingQueries.get(event.id)
      if (query != null && query.runId == event.runId) {
        val conf = query.sparkSessionForStream.conf
        if (!conf.getAll.contains(SQLConf.STATE_STORE_PROVIDER_CLASS.key)) {
          conf.set(SQLConf.STATE_STORE_PROVIDER_CLASS.key, provider)
        }
      }
    }

    override def onQueryProgress(event: StreamingQueryListener.QueryProgressEvent): Unit = ()

    override def onQueryTerminated(event: StreamingQueryListener.QueryTerminatedEvent): Unit = ()
  }
}

private object UncheckpointedRule extends ColumnarRule {
  override val preColumnarTransitions: Rule[SparkPlan] = new Rule[SparkPlan] {
    override def apply(plan: SparkPlan): SparkPlan = plan.transformUp {
      case scala: TransformWithStateExec if scala.isStreaming && isUncheckpointed(scala) =>
        new CheckpointTransformWithStateExec(scala)
      case python: TransformWithStateInPySparkExec if isUncheckpointed(python) =>
        new CheckpointTransformWithStateInPySparkExec(python)
    }
  }

  private def isUncheckpointed(operator: SparkPlan): Boolean =
    operator.conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS) == UncheckpointedExtensions.provider
}
