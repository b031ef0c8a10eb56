module cns-interop

go 1.26
