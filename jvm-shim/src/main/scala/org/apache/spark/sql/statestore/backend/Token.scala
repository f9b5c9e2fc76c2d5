package org.apache.spark.sql.statestore.backend

import java.nio.charset.StandardCharsets
import java.security.{MessageDigest, SecureRandom}
import javax.crypto.Mac
import javax.crypto.spec.SecretKeySpec

/**
 * Secret that this JVM shares with a backend that it started.
 *
 * Guarantees: it is sent over the standard input of the backend only. On a connection each side proves its
 * knowledge with an HMAC of two challenges that are used once, so a recorded handshake opens no other
 * connection. No method returns it.
 */
private[statestore] final class Token {
  import Token._

  private val value = random()

  /** The line to write to the backend's standard input. */
  def line: Array[Byte] = s"$value\n".getBytes(StandardCharsets.US_ASCII)

  /** Returns the HMAC by which a role, `shim` or `backend`, proves knowledge of the token. */
  def response(role: String, challenge: String, otherChallenge: String): String = {
    val mac = Mac.getInstance(Algorithm)
    mac.init(new SecretKeySpec(value.getBytes(StandardCharsets.US_ASCII), Algorithm))
    hex.formatHex(mac.doFinal(s"$role:$challenge:$otherChallenge".getBytes(StandardCharsets.UTF_8)))
  }

  def isResponse(shown: String, role: String, challenge: String, otherChallenge: String): Boolean =
    MessageDigest.isEqual(
      shown.getBytes(StandardCharsets.UTF_8),
      response(role, challenge, otherChallenge).getBytes(StandardCharsets.UTF_8))
}

private[statestore] object Token {
  private final val Algorithm = "HmacSHA256"
  private final val Bytes = 32
  private val hex = java.util.HexFormat.of()
  private val source = new SecureRandom

  def newChallenge(): String = random()

  private def random(): String = {
    val bytes = new Array[Byte](Bytes)
    source.nextBytes(bytes)
    hex.formatHex(bytes)
  }
}
