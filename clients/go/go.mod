module fencepost

go 1.21
