package org.apache.spark.sql.statestore.provider

/** Reusable iterators of a store, which Spark asks for since 4.3. */
private[statestore] trait ReusableScans
