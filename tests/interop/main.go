package main

import (
	"fmt"

	"github.com/Azure/azure-container-networking/cns"
	"github.com/Azure/azure-container-networking/cns/client"
)

func main() { fmt.Println(client.New, cns.IPConfigsRequest{}) }
