module github.com/delayd/delayd

go 1.26
