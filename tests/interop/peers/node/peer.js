// A gRPC client of grpc-js, for tests/interop/grpc_peer.rs.
//
//   peer.js client TARGET   makes one call for each line on stdin, and prints `ok ANSWER` or `error REASON`
//
// It finds its xDS bootstrap as every gRPC client does, and ends with stdin. Requests and answers are plain bytes, so
// no generated code is needed. NODE_PATH says where the packages are.
"use strict";

const readline = require("node:readline");
const grpc = require("@grpc/grpc-js");
require("@grpc/grpc-js-xds").register();

const [role, target] = process.argv.slice(2);
if (role !== "client" || target === undefined) {
  console.error("usage: peer.js client TARGET");
  process.exit(2);
}

const client = new grpc.Client(target, grpc.credentials.createInsecure());

function call() {
  const options = { deadline: Date.now() + 12_000 };
  const plain = (bytes) => bytes;
  client.makeUnaryRequest("/interop.Name/Get", plain, plain, Buffer.alloc(0), options, (error, answer) => {
    const reason = () => `error ${grpc.status[error.code]} ${error.details.split(/\s+/).join(" ")}`;
    console.log(error ? reason() : `ok ${answer}`);
  });
}

readline
  .createInterface({ input: process.stdin })
  .on("line", call)
  .on("close", () => process.exit(0));
