"""A gRPC server and a gRPC client of the C core, for tests/interop/grpc_peer.rs.

  peer.py server NAME     serves on a free port, prints it, and answers every call with NAME
  peer.py client TARGET   makes one call for each line on stdin, and prints `ok ANSWER` or `error REASON`

The client finds its xDS bootstrap as every gRPC client does, through GRPC_XDS_BOOTSTRAP. Both end with stdin.
Requests and answers are plain bytes, so no generated code is needed.
"""

import sys
from concurrent import futures

import grpc


class AnswerAll(grpc.GenericRpcHandler):
    def __init__(self, name):
        self.answer = name.encode()

    def service(self, _details):
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: self.answer)


def serve(name):
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((AnswerAll(name),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None)


def call(target):
    with grpc.insecure_channel(target) as channel:
        method = channel.unary_unary("/interop.Name/Get")
        for _ in sys.stdin:
            try:
                print("ok", method(b"", timeout=12).decode(), flush=True)
            except grpc.RpcError as error:
                print("error", error.code().name, " ".join(error.details().split()), flush=True)


if __name__ == "__main__":
    {"server": serve, "client": call}[sys.argv[1]](sys.argv[2])
