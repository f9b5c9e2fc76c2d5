package org.apache.spark.sql.statestore

import java.io.IOException

/**
 * A failure that the Python backend reported or that happened on the way to it.
 *
 * @param kind the name of the Python error class, or "Transport" when no answer arrived
 */
private[statestore] class BackendException(val kind: String, message: String, cause: Throwable = null)
  extends IOException(message, cause)

/** No answer: the connection broke or the process is gone. Asking again is safe. */
private[statestore] final class BackendConnectionException(message: String, cause: Throwable = null)
  extends BackendException("Transport", message, cause)

/** No answer for so long that nobody waits on. The task fails; when it is run again, it asks anew. */
private[statestore] final class BackendTimeoutException(message: String)
  extends BackendException("Timeout", message)

/** The backend cannot be started; asking again would fail the same way. */
private[statestore] final class BackendStartException(message: String, cause: Throwable = null)
  extends BackendException("Start", message, cause)

/** The jar and the running Spark do not belong together. */
private[statestore] final class IncompatibleSparkException(message: String)
  extends IllegalStateException(message)

/** An option that nobody knows, or a value that it cannot have. */
private[statestore] final class InvalidOptionException(message: String)
  extends IllegalArgumentException(message)

/** Memory storage whose executors cannot reach the driver, which would keep their state. */
private[statestore] final class MissingPluginException(message: String)
  extends IllegalStateException(message)

/** A store that lost its state to a newer attempt and must not touch it any more. */
private[statestore] final class StaleStateStoreException(message: String)
  extends IllegalStateException(message)

/** A feature that this provider does not have. */
private[statestore] final class UnsupportedFeatureException(message: String)
  extends UnsupportedOperationException(message)
