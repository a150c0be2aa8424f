package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// connecting is how the client connects, by the options of librdkafka that the environment has.
func connecting() ([]kgo.Opt, error) {
	text := os.Getenv("CLIENT_OPTIONS")
	if text == "" {
		return nil, nil
	}
	options := map[string]string{}
	if err := json.Unmarshal([]byte(text), &options); err != nil {
		return nil, err
	}
	found := []kgo.Opt{}
	if strings.HasSuffix(options["security.protocol"], "SSL") {
		config, err := encryption(options)
		if err != nil {
			return nil, err
		}
		found = append(found, kgo.DialTLSConfig(config))
	}
	if strings.HasPrefix(options["security.protocol"], "SASL") {
		mechanism, err := login(options)
		if err != nil {
			return nil, err
		}
		found = append(found, kgo.SASL(mechanism))
	}
	return found, nil
}

func encryption(options map[string]string) (*tls.Config, error) {
	authorities, err := os.ReadFile(options["ssl.ca.location"])
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authorities)
	if place, ok := options["ssl.certificate.location"]; ok {
		own, err := tls.LoadX509KeyPair(place, options["ssl.key.location"])
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

func login(options map[string]string) (sasl.Mechanism, error) {
	user, password := options["sasl.username"], options["sasl.password"]
	switch mechanism := options["sasl.mechanism"]; mechanism {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Auth{Token: options["token"]}.AsMechanism(), nil
	default:
		return nil, fmt.Errorf("there is no mechanism %q", mechanism)
	}
}
