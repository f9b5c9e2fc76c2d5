package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.catalyst.plans.logical.TransformWithStateInPySpark.UserFacingDataType
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.streaming.{OutputMode, TimeMode}
import org.apache.spark.sql.types.StructType

/**
 * Spark's operator of Python's transformWithState and transformWithStateInPandas without the check of the
 * provider's class; see `CheckpointTransformWithStateExec`.
 */
private[statestore] class CheckpointTransformWithStateInPySparkExec(
    functionExpr: Expression,
    groupingAttributes: Seq[Attribute],
    outputColumns: Seq[Attribute],
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
    functionExpr, groupingAttributes, outputColumns, outputMode, timeMode, stateInfo, batchTimestampMs,
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
  // By position: Spark renamed the third parameter in 4.3.
  def apply(of: TransformWithStateInPySparkExec): CheckpointTransformWithStateInPySparkExec = of match {
    case TransformWithStateInPySparkExec(
        functionExpr, groupingAttributes, outputColumns, outputMode, timeMode, stateInfo, batchTimestampMs,
        prevBatchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction,
        userFacingDataType, child, isStreaming, hasInitialState, initialState, initialStateGroupingAttrs,
        initialStateSchema) =>
      new CheckpointTransformWithStateInPySparkExec(
        functionExpr, groupingAttributes, outputColumns, outputMode, timeMode, stateInfo, batchTimestampMs,
        prevBatchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction,
        userFacingDataType, child, isStreaming, hasInitialState, initialState, initialStateGroupingAttrs,
        initialStateSchema)
  }
}
