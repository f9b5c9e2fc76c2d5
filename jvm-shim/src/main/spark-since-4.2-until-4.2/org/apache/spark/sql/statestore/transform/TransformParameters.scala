package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec

/** A copy of Spark's operator, made with the constructor of this Spark. */
private[statestore] abstract class TransformParameters(of: TransformWithStateExec)
  extends TransformWithStateExec(
    of.keyDeserializer, of.valueDeserializer, of.groupingAttributes, of.dataAttributes, of.statefulProcessor, of.timeMode,
    of.outputMode, of.keyEncoder, of.outputObjAttr, of.stateInfo, of.batchTimestampMs, of.prevBatchTimestampMs,
    of.eventTimeWatermarkForLateEvents, of.eventTimeWatermarkForEviction, of.child, of.isStreaming, of.hasInitialState,
    of.initialStateGroupingAttrs, of.initialStateDataAttrs, of.initialStateDeserializer, of.initialState)
