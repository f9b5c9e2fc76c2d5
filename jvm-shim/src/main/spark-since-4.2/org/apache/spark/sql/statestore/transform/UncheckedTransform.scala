package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExecBase

/**
 * One of Spark's operators of transformWithState without the check of the provider's class. A class that mixes this in
 * extends the operator, with its parameters.
 */
private[statestore] trait UncheckedTransform extends TransformWithStateExecBase {
  /** The operator that this one replaces, with the same parameters and children. */
  protected def checked: TransformWithStateExecBase

  protected def unchecked(operator: SparkPlan): SparkPlan

  // The rule has checked the provider already.
  override def validateStateStoreProvider(isStreaming: Boolean): Unit = ()

  // Spark copies operators through constructors that take all parameters, which this one has not.
  override def makeCopy(newArgs: Array[AnyRef]): SparkPlan = unchecked(checked.makeCopy(newArgs))

  override def clone(): SparkPlan = unchecked(checked.clone())

  // Spark discards the result of a rule that equals its input: the replaced operator must not equal this.
  override def canEqual(other: Any): Boolean = other.isInstanceOf[UncheckedTransform]

  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)

  override def hashCode(): Int = super.hashCode()
}
