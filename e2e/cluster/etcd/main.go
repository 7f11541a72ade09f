// Command etcd is the etcd server, of the version that this module pins.
//
// Its own main package is in a module that can't be required because of its
// replace directives; that package is no more than this call.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
