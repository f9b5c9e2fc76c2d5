package org.apache.spark.sql.statestore.transform

import org.apache.spark.sql.execution.ColumnarRule

/** Rule that changes nothing: this Spark runs transformWithState on any provider. */
private[statestore] object TransformWithStateRule extends ColumnarRule
