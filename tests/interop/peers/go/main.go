// A gRPC client of grpc-go, for tests/interop/grpc_peer.rs.
//
//	peer client TARGET   makes one call for each line on stdin, and prints `ok ANSWER` or `error REASON`
//
// It finds its xDS bootstrap as every gRPC client does, and ends with stdin. Requests and answers are plain bytes, so
// no generated code is needed.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds"
)

// plain is a codec that leaves bytes as they are; the name is that of the codec it stands in for.
type plain struct{}

func (plain) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (plain) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (plain) Name() string { return "proto" }

func main() {
	if len(os.Args) != 3 || os.Args[1] != "client" {
		fmt.Fprintln(os.Stderr, "usage: peer client TARGET")
		os.Exit(2)
	}
	channel, err := grpc.NewClient(os.Args[2], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer channel.Close()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(call(channel))
	}
}

func call(channel *grpc.ClientConn) string {
	deadline, cancel := context.WithTimeout(context.Background(), 12*time.Second)
	defer cancel()
	request, answer := []byte{}, []byte{}
	err := channel.Invoke(deadline, "/interop.Name/Get", &request, &answer, grpc.ForceCodec(plain{}))
	if err != nil {
		reason := status.Convert(err)
		return fmt.Sprintf("error %v %s", reason.Code(), strings.Join(strings.Fields(reason.Message()), " "))
	}
	return "ok " + string(answer)
}
