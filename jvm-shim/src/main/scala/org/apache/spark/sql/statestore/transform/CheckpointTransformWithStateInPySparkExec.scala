package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.catalyst.plans.logical.TransformWithStateInPySpark.UserFacingDataType
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.streaming.{OutputMode, TimeMode}
import org.apache.spark.sql.types.StructType

/**
 * Spark's operator of Python's transformWithState and transformWithStateInPandas, which runs on a
 * provider of this package too. `CheckpointTransformWithStateExec` says why it is written as it is.
 */
private[statestore] class CheckpointTransformWithStateInPySparkExec(
    functionExpr: Expression,
    groupingAttributes: Seq[Attribute],
    outputAttrs: Seq[Attribute],
    outputMode: OutputMode,
    timeMode: TimeMode,
    stateInfo: Option[StatefulOperatorStateInfo],
    batchTimestampMs: Option[Long],
    prevBatchTimestampMs: Option[Long],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    userFacingDataType: UserFacingDataType.Value,
    child: SparkPlan,
    isStreaming: Boolean,
    hasInitialState: Boolean,
    initialState: SparkPlan,
    initialStateGroupingAttrs: Seq[Attribute],
    initialStateSchema: StructType)
  extends TransformWithStateInPySparkExec(
    functionExpr, groupingAttributes, outputAttrs, outputMode, timeMode, stateInfo, batchTimestampMs,
    prevBatchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction,
    userFacingDataType, child, isStreaming, hasInitialState, initialState, initialStateGroupingAttrs,
    initialStateSchema) {

  override def validateStateStoreProvider(isStreaming: Boolean): Unit = ()

  override protected def withNewChildrenInternal(
      newLeft: SparkPlan, newRight: SparkPlan): TransformWithStateInPySparkExec =
    CheckpointTransformWithStateInPySparkExec(super.withNewChildrenInternal(newLeft, newRight))

  override def canEqual(other: Any): Boolean =
    other.isInstanceOf[CheckpointTransformWithStateInPySparkExec]

  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)

  override def hashCode(): Int = super.hashCode()
}

private[statestore] object CheckpointTransformWithStateInPySparkExec {
  def apply(of: TransformWithStateInPySparkExec): CheckpointTransformWithStateInPySparkExec =
    new CheckpointTransformWithStateInPySparkExec(
      of.functionExpr, of.groupingAttributes, of.outputAttrs, of.outputMode, of.timeMode, of.stateInfo,
      of.batchTimestampMs, of.prevBatchTimestampMs, of.eventTimeWatermarkForLateEvents,
      of.eventTimeWatermarkForEviction, of.userFacingDataType, of.child, of.isStreaming,
      of.hasInitialState, of.initialState, of.initialStateGroupingAttrs, of.initialStateSchema)
}
