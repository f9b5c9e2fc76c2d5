package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec

/** Spark's operator of Python's transformWithState and transformWithStateInPandas, see `UncheckedTransform`. */
private[statestore] final class CheckpointTransformWithStateInPySparkExec(
    @transient protected val checked: TransformWithStateInPySparkExec)
  extends TransformWithStateInPySparkExec(
    checked.functionExpr, checked.groupingAttributes,
    // By position: Spark renamed this parameter in 4.3.
    checked.productElement(2).asInstanceOf[Seq[Attribute]],
    checked.outputMode, checked.timeMode, checked.stateInfo, checked.batchTimestampMs, checked.prevBatchTimestampMs,
    checked.eventTimeWatermarkForLateEvents, checked.eventTimeWatermarkForEviction, checked.userFacingDataType,
    checked.child, checked.isStreaming, checked.hasInitialState, checked.initialState, checked.initialStateGroupingAttrs,
    checked.initialStateSchema)
  with UncheckedTransform {

  // The parent's method returns the parent's class; code generation replaces the children of every operator.
  override protected def withNewChildrenInternal(
      newLeft: SparkPlan, newRight: SparkPlan): TransformWithStateInPySparkExec =
    unchecked(super.withNewChildrenInternal(newLeft, newRight))

  override protected def unchecked(operator: SparkPlan): CheckpointTransformWithStateInPySparkExec =
    new CheckpointTransformWithStateInPySparkExec(operator.asInstanceOf[TransformWithStateInPySparkExec])
}
