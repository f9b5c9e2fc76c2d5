package org.apache.spark.sql.statestore.memory

/**
 * What executors ask of the driver. Answers consist of the classes of Java and Scala alone: the
 * thread that reads them on an executor knows no other jar.
 */
private[statestore] sealed trait KeeperMessage extends Product with Serializable {
  def answer(keeper: CheckpointKeeper): Any
}

private[memory] final case class KeepVersion(store: String, held: HeldVersion) extends KeeperMessage {
  override def answer(keeper: CheckpointKeeper): Any = keeper.put(store, held)
}

private[memory] final case class FindVersion(store: String, version: Long, id: Option[String])
  extends KeeperMessage {
  override def answer(keeper: CheckpointKeeper): Any = keeper.chain(store, version, id).toAnswer
}

private[memory] final case class FetchObject(store: String, name: HeldName) extends KeeperMessage {
  override def answer(keeper: CheckpointKeeper): Any = keeper.fetch(store, name).orNull
}

private[memory] final case class DiscardVersions(
    store: String, newest: Long, id: Option[String], attempt: String, horizon: Long, most: Int)
  extends KeeperMessage {
  override def answer(keeper: CheckpointKeeper): Any =
    keeper.discardBefore(store, newest, id, attempt, horizon, most)
}
