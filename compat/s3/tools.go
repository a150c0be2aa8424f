//go:build tools

// Package s3 names the program that this module's sums are of.
package s3

import _ "github.com/versity/versitygw/cmd/versitygw"
