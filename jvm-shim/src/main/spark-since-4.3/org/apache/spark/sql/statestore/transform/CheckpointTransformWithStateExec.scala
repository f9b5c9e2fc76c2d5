package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.streaming.{OutputMode, StatefulProcessor, TimeMode}

/**
 * Spark's operator of Scala's transformWithState without the check of the provider's class.
 *
 * It has the parameters of its parent, because Spark copies operators through their constructors.
 */
private[statestore] class CheckpointTransformWithStateExec(
    keyDeserializer: Expression,
    valueDeserializer: Expression,
    groupingAttributes: Seq[Attribute],
    dataAttributes: Seq[Attribute],
    statefulProcessor: StatefulProcessor[Any, Any, Any],
    timeMode: TimeMode,
    outputMode: OutputMode,
    keyEncoder: ExpressionEncoder[Any],
    outputObjAttr: Attribute,
    stateInfo: Option[StatefulOperatorStateInfo],
    batchTimestampMs: Option[Long],
    prevBatchTimestampMs: Option[Long],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    child: SparkPlan,
    isStreaming: Boolean,
    isRealTimeMode: Boolean,
    hasInitialState: Boolean,
    initialStateGroupingAttrs: Seq[Attribute],
    initialStateDataAttrs: Seq[Attribute],
    initialStateDeserializer: Expression,
    initialState: SparkPlan)
  extends TransformWithStateExec(
    keyDeserializer, valueDeserializer, groupingAttributes, dataAttributes, statefulProcessor, timeMode,
    outputMode, keyEncoder, outputObjAttr, stateInfo, batchTimestampMs, prevBatchTimestampMs,
    eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction, child, isStreaming, isRealTimeMode,
    hasInitialState, initialStateGroupingAttrs, initialStateDataAttrs, initialStateDeserializer,
    initialState) {

  // The rule has checked the provider already.
  override def validateStateStoreProvider(isStreaming: Boolean): Unit = ()

  // The parent's method returns the parent's class; code generation replaces the children of every operator.
  override protected def withNewChildrenInternal(newLeft: SparkPlan, newRight: SparkPlan): TransformWithStateExec =
    CheckpointTransformWithStateExec(super.withNewChildrenInternal(newLeft, newRight))

  // Spark discards the result of a rule that equals its input: the parent must not equal this.
  override def canEqual(other: Any): Boolean = other.isInstanceOf[CheckpointTransformWithStateExec]

  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)

  override def hashCode(): Int = super.hashCode()
}

private[statestore] object CheckpointTransformWithStateExec {
  def apply(of: TransformWithStateExec): CheckpointTransformWithStateExec =
    new CheckpointTransformWithStateExec(
      of.keyDeserializer, of.valueDeserializer, of.groupingAttributes, of.dataAttributes,
      of.statefulProcessor, of.timeMode, of.outputMode, of.keyEncoder, of.outputObjAttr, of.stateInfo,
      of.batchTimestampMs, of.prevBatchTimestampMs, of.eventTimeWatermarkForLateEvents,
      of.eventTimeWatermarkForEviction, of.child, of.isStreaming, of.isRealTimeMode, of.hasInitialState,
      of.initialStateGroupingAttrs, of.initialStateDataAttrs, of.initialStateDeserializer, of.initialState)
}
