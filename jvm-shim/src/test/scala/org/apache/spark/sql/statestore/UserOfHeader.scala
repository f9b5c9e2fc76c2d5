package org.apache.spark.sql.statestore

import jakarta.servlet.{Filter, FilterChain, ServletRequest, ServletResponse}
import jakarta.servlet.http.{HttpServletRequest, HttpServletRequestWrapper}

/** Filter of Spark's UI that takes the user from the header `X-User`, for tests of access control. */
class UserOfHeader extends Filter {
  override def doFilter(request: ServletRequest, response: ServletResponse, chain: FilterChain): Unit = {
    val received = request.asInstanceOf[HttpServletRequest]
    chain.doFilter(
      new HttpServletRequestWrapper(received) {
        override def getRemoteUser: String = received.getHeader("X-User")
      }, response)
  }
}
