package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec

/** A copy of Spark's operator, made with the constructor of this Spark. */
private[statestore] abstract class TransformParameters(operator: TransformWithStateExec)
  extends TransformWithStateExec(
    operator.keyDeserializer, operator.valueDeserializer, operator.groupingAttributes, operator.dataAttributes,
    operator.statefulProcessor, operator.timeMode, operator.outputMode, operator.keyEncoder, operator.outputObjAttr,
    operator.stateInfo, operator.batchTimestampMs, operator.prevBatchTimestampMs,
    operator.eventTimeWatermarkForLateEvents, operator.eventTimeWatermarkForEviction, operator.child,
    operator.isStreaming, operator.hasInitialState, operator.initialStateGroupingAttrs, operator.initialStateDataAttrs,
    operator.initialStateDeserializer, operator.initialState)
