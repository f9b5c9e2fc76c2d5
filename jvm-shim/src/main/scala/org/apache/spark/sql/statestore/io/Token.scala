package org.apache.spark.sql.statestore.io

import java.nio.charset.StandardCharsets
import java.security.{MessageDigest, SecureRandom}
import javax.crypto.Mac
import javax.crypto.spec.SecretKeySpec

/**
 * What this JVM and a backend that it started know, and nobody else.
 *
 * Guarantees: it travels over the standard input of the backend alone. On a connection each side only proves that
 * it knows it, by a keyed hash of two challenges that are used once: what is overheard on one connection
 * opens no other. No method shows it.
 */
private[io] final class Token {
  import Token._

  private val value = random()

  /** For the backend's standard input. */
  def line: Array[Byte] = s"$value\n".getBytes(StandardCharsets.US_ASCII)

  /** What shows that somebody, `shim` or `backend`, knows the token. */
  def proof(who: String, challenge: String, otherChallenge: String): String = {
    val mac = Mac.getInstance(Algorithm)
    mac.init(new SecretKeySpec(value.getBytes(StandardCharsets.US_ASCII), Algorithm))
    hex.formatHex(mac.doFinal(s"$who:$challenge:$otherChallenge".getBytes(StandardCharsets.UTF_8)))
  }

  def isProof(shown: String, who: String, challenge: String, otherChallenge: String): Boolean =
    MessageDigest.isEqual(
      shown.getBytes(StandardCharsets.UTF_8),
      proof(who, challenge, otherChallenge).getBytes(StandardCharsets.UTF_8))
}

private[io] object Token {
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
