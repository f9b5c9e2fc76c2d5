package org.apache.spark.sql.statestore.driver

/**
 * Requests of executors to the driver. Answers use classes of Java and Scala only: the thread that
 * deserializes them on an executor does not see this jar.
 */
private[statestore] sealed trait DriverMessage extends Product with Serializable {
  def answer(driverStore: DriverCheckpointStore): Any
}

private[statestore] final case class PutVersion(store: String, driverVersion: DriverVersion) extends DriverMessage {
  override def answer(driverStore: DriverCheckpointStore): Any = driverStore.put(store, driverVersion)
}

private[statestore] final case class FindVersion(store: String, version: Long, id: Option[String])
  extends DriverMessage {
  override def answer(driverStore: DriverCheckpointStore): Any = driverStore.chain(store, version, id).toAnswer
}

private[statestore] final case class FetchObject(store: String, name: DriverVersionName) extends DriverMessage {
  override def answer(driverStore: DriverCheckpointStore): Any = driverStore.fetch(store, name).orNull
}

private[statestore] final case class DiscardVersions(
    store: String, newest: Long, id: Option[String], attemptId: String, horizon: Long, most: Int)
  extends DriverMessage {
  override def answer(driverStore: DriverCheckpointStore): Any =
    driverStore.discardBefore(store, newest, id, attemptId, horizon, most)
}
