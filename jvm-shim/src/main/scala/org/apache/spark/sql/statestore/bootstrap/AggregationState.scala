package org.apache.spark.sql.statestore.bootstrap

import scala.annotation.tailrec

import org.apache.spark.sql.{DataFrame, classic}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
import org.apache.spark.sql.catalyst.expressions.{
  Alias, Attribute, CreateNamedStruct, Expression, GetStructField, Literal, SessionWindow, UnsafeProjection}
import org.apache.spark.sql.catalyst.optimizer.InlineCTE
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, LogicalPlan, Project, UnaryNode}
import org.apache.spark.sql.catalyst.types.DataTypeUtils
import org.apache.spark.sql.execution.{LogicalRDD, QueryExecution, SparkPlan, SparkPlanner, SparkStrategy}
import org.apache.spark.sql.execution.aggregate.{
  BaseAggregateExec, HashAggregateExec, MergingSessionsExec, ObjectHashAggregateExec, SortAggregateExec,
  UpdatingSessionsExec}
import org.apache.spark.sql.statestore.compat.Since41
import org.apache.spark.sql.streaming.OutputMode

/**
 * The state that a streaming aggregation would have after a batch of input. Python calls it, see
 * spark_statestore/writing/aggregation.py.
 *
 * Spark itself plans the aggregation of a stream. Its rows before they are saved are the state.
 */
object AggregationState {
  // Spark's name for the last field of a session's key.
  private final val SessionStart = "sessionStartTime"

  /** Returns the columns `key` and `value` of the state; null for a frame that does not end in an aggregation. */
  def of(frame: DataFrame): DataFrame = {
    val batch = frame.asInstanceOf[classic.Dataset[_]]
    val session = batch.sparkSession
    val plan = InlineCTE(alwaysInline = true)(batch.queryExecution.analyzed)
    last(plan).map { aggregate =>
      session.withActive {
        val streaming = plan.transformDown { case `aggregate` => asStream(session, aggregate) }
        UnsupportedOperationChecker.checkForStreaming(streaming, OutputMode.Complete())
        val merged = mergedBuffers(planned(session, streaming))
        val columns = Seq("key" -> key(merged), "value" -> value(merged)).map { case (name, fields) =>
          Alias(CreateNamedStruct(fields.flatMap { case (field, part) => Seq(Literal(field), part) }), name)()
        }
        val output = merged.output
        val rows = QueryExecution.prepareExecutedPlan(session, merged).execute().mapPartitionsInternal { rows =>
          val projection = UnsafeProjection.create(columns, output)
          rows.map(row => projection(row): InternalRow)
        }
        session.internalCreateDataFrame(rows, DataTypeUtils.fromAttributes(columns.map(_.toAttribute)))
      }
    }.orNull
  }

  @tailrec
  private def last(plan: LogicalPlan): Option[Aggregate] = plan match {
    case aggregate: Aggregate => Some(aggregate)
    case unary: UnaryNode => last(unary.child)
    case _ => None
  }

  private def asStream(session: classic.SparkSession, aggregate: Aggregate): LogicalPlan = {
    val columns = aggregate.child.output.filter(aggregate.references.contains)
    val input = classic.Dataset.ofRows(session, Project(columns, aggregate.child))
    val rows = LogicalRDD(columns, input.queryExecution.toRdd, isStreaming = true)(session)
    aggregate.withNewChildren(Seq(rows))
  }

  private def planned(session: classic.SparkSession, plan: LogicalPlan): SparkPlan = {
    val planner = new SparkPlanner(session, session.sessionState.experimentalMethods) {
      override def strategies: Seq[SparkStrategy] = StatefulAggregationStrategy +: super.strategies
    }
    planner.plan(session.sessionState.optimizer.execute(plan)).next()
  }

  /** Returns what a plan saves, without a state to merge it with. */
  private def mergedBuffers(plan: SparkPlan): BaseAggregateExec = {
    val saved = plan.collectFirst { case save: Since41.StatefulOperator => save.children.head }.get
    saved.transform {
      case restore: Since41.StatefulOperator => restore.children.head
    }.transform {
      // A stream's partitions are those of its state.
      case node: HashAggregateExec => node.copy(isStreaming = false)
      case node: ObjectHashAggregateExec => node.copy(isStreaming = false)
      case node: SortAggregateExec => node.copy(isStreaming = false)
      case node: MergingSessionsExec => node.copy(isStreaming = false)
      case node: UpdatingSessionsExec => node.copy(isStreaming = false)
    }.asInstanceOf[BaseAggregateExec]
  }

  private def key(merged: BaseAggregateExec): Seq[(String, Expression)] = {
    val (sessions, grouping) = keys(merged).partition(isSession)
    named(grouping) ++ sessions.map(session => SessionStart -> GetStructField(session, 0))
  }

  private def value(merged: BaseAggregateExec): Seq[(String, Expression)] = {
    val grouping = keys(merged)
    // The value of a session repeats the key.
    named(if (grouping.exists(isSession)) merged.output else merged.output.diff(grouping))
  }

  private def keys(merged: BaseAggregateExec): Seq[Attribute] = merged.groupingExpressions.map(_.toAttribute)

  private def isSession(attribute: Attribute): Boolean = attribute.metadata.contains(SessionWindow.marker)

  private def named(attributes: Seq[Attribute]): Seq[(String, Expression)] =
    attributes.map(attribute => attribute.name -> attribute)
}
