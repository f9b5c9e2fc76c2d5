package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec

/** Spark's operator of Scala's transformWithState, see `UncheckedTransform`. */
private[statestore] final class CheckpointTransformWithStateExec(
    @transient protected val checked: TransformWithStateExec)
  extends TransformParameters(checked) with UncheckedTransform {

  // The parent's method returns the parent's class; code generation replaces the children of every operator.
  override protected def withNewChildrenInternal(newLeft: SparkPlan, newRight: SparkPlan): TransformWithStateExec =
    unchecked(super.withNewChildrenInternal(newLeft, newRight))

  override protected def unchecked(operator: SparkPlan): CheckpointTransformWithStateExec =
    new CheckpointTransformWithStateExec(operator.asInstanceOf[TransformWithStateExec])
}
