"""httpx2 for servers of the tests' own: past every proxy, and without public certificate authorities.

Loading those takes 38 ms of CPU for each client, also where every address is plain HTTP on loopback. Whoever
says nothing else waits for half a minute: httpx2's five seconds pass in a first request to a busy server.
"""

import ssl
from functools import partial

import httpx2

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
SECONDS = 30.0

get = partial(httpx2.get, trust_env=False, verify=NO_AUTHORITIES, timeout=SECONDS)
post = partial(httpx2.post, trust_env=False, verify=NO_AUTHORITIES, timeout=SECONDS)
request = partial(httpx2.request, trust_env=False, verify=NO_AUTHORITIES, timeout=SECONDS)
Client = partial(httpx2.Client, trust_env=False, verify=NO_AUTHORITIES, timeout=SECONDS)
AsyncClient = partial(httpx2.AsyncClient, trust_env=False, verify=NO_AUTHORITIES, timeout=SECONDS)
