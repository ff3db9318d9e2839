"""One call of the C core, at its default limits, for tests/interop/c_core.rs.

  call.py TARGET METHOD TOKEN     calls METHOD with the bytes on stdin, and prints `OK`, or the code, the size of the
                                  details and the message

Requests and answers are plain bytes, so no generated code is needed.
"""

import sys

import grpc

target, method, token = sys.argv[1:]
with grpc.insecure_channel(target) as channel:
    try:
        metadata = (("authorization", "Bearer " + token),)
        channel.unary_unary(method)(sys.stdin.buffer.read(), metadata=metadata, timeout=20)
        print("OK")
    except grpc.RpcError as error:
        details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
        print(error.code().name, len(details), error.details())
