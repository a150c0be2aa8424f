// Go clients of the schema registry behind a line protocol: one JSON call a line on standard input,
// one JSON answer a line on standard output. See compat/registry/remote.py for the other side.
//
// The argument selects the client: `confluent` is confluent-kafka-go, `franz` is franz-go's pkg/sr.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

const readTime = 20 * time.Second

// header is a name and a value, as a list of two.
type header struct {
	Key   string
	Value []byte
}

func (h header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Key, h.Value}) }

func (h *header) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.Key, &h.Value})
}

type options struct {
	Strategy   string            `json:"strategy"`
	Header     bool              `json:"header"`
	Auto       *bool             `json:"auto"`
	Latest     bool              `json:"latest"`
	LatestWith map[string]string `json:"latest_with"`
	UseID      int               `json:"use_id"`
	Normalize  bool              `json:"normalize"`
	Schema     json.RawMessage   `json:"schema"`
	Message    string            `json:"message"`
}

type call struct {
	ID          int               `json:"id"`
	Op          string            `json:"op"`
	Bootstrap   string            `json:"bootstrap"`
	Registry    string            `json:"registry"`
	Descriptors []byte            `json:"descriptors"`
	Subject     string            `json:"subject"`
	Schema      json.RawMessage   `json:"schema"`
	Normalize   bool              `json:"normalize"`
	Deleted     bool              `json:"deleted"`
	SchemaID    int               `json:"schema_id"`
	GUID        string            `json:"guid"`
	Version     json.RawMessage   `json:"version"`
	Metadata    map[string]string `json:"metadata"`
	Permanent   bool              `json:"permanent"`
	Force       bool              `json:"force"`
	Level       string            `json:"level"`
	Mode        string            `json:"mode"`
	Config      json.RawMessage   `json:"config"`
	Prefix      string            `json:"prefix"`
	Context     string            `json:"context"`
	Topic       string            `json:"topic"`
	Topics      []string          `json:"topics"`
	Kind        string            `json:"kind"`
	Output      string            `json:"output"`
	Value       json.RawMessage   `json:"value"`
	Values      []json.RawMessage `json:"values"`
	Count       int               `json:"count"`
	Payload     []byte            `json:"payload"`
	Headers     []header          `json:"headers"`
	Message     string            `json:"message"`
	Latest      bool              `json:"latest"`
	Options     options           `json:"options"`
}

// number is the version of the call; -1 stands for the newest one.
func (c *call) number() int {
	var found int
	if json.Unmarshal(c.Version, &found) != nil {
		return -1
	}
	return found
}

// problem is an error of the registry with its code.
type problem struct {
	code    int
	message string
}

func (p *problem) Error() string { return p.message }

type client interface {
	answer(c *call) (any, error)
	serialize(c *call, values []json.RawMessage) ([]payload, error)
	reader(c *call) (func(topic string, headers []header, value []byte) (any, error), error)
	produce(c *call, values []payload) error
	consume(c *call, read func(topic string, headers []header, value []byte) (bool, error)) error
	version() string
}

// payload is a serialized value and the headers that belong to it.
type payload struct {
	Value   []byte   `json:"payload"`
	Headers []header `json:"headers"`
}

func answer(used client, c *call) (any, error) {
	switch c.Op {
	case "name":
		return used.version(), nil
	case "serialize":
		found, err := used.serialize(c, []json.RawMessage{c.Value})
		if err != nil {
			return nil, err
		}
		return found[0], nil
	case "write":
		found, err := used.serialize(c, c.Values)
		if err != nil {
			return nil, err
		}
		return nil, used.produce(c, found)
	case "deserialize":
		read, err := used.reader(c)
		if err != nil {
			return nil, err
		}
		return read(c.Topic, c.Headers, c.Payload)
	case "read":
		return readAll(used, c)
	}
	return used.answer(c)
}

func readAll(used client, c *call) (any, error) {
	read, err := used.reader(c)
	if err != nil {
		return nil, err
	}
	found := map[string][]any{}
	missing := c.Count * len(c.Topics)
	err = used.consume(c, func(topic string, headers []header, value []byte) (bool, error) {
		made, err := read(topic, headers, value)
		if err == nil {
			found[topic] = append(found[topic], made)
			missing--
		}
		return missing > 0, err
	})
	if err == nil && missing > 0 {
		err = errors.New("not all records were read in time")
	}
	return found, err
}

// messages are the Protobuf types of the test.
var messages *protoregistry.Files

func load(descriptors []byte) error {
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(descriptors, &set); err != nil {
		return err
	}
	var err error
	messages, err = protodesc.NewFiles(&set)
	return err
}

func newMessage(name string) (*dynamicpb.Message, error) {
	found, err := messages.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil, err
	}
	return dynamicpb.NewMessage(found.(protoreflect.MessageDescriptor)), nil
}

func versionOf(module string) string {
	built, _ := debug.ReadBuildInfo()
	for _, dependency := range built.Deps {
		if dependency.Path == module {
			return strings.TrimPrefix(module, "github.com/") + " " + dependency.Version
		}
	}
	return module
}

func main() {
	var used client
	lines := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var c call
		if err := json.Unmarshal(line, &c); err != nil {
			panic(err)
		}
		response := map[string]any{"id": c.ID}
		var result any
		if c.Op == "open" {
			used, err = open(os.Args[1], &c)
		} else {
			result, err = answer(used, &c)
		}
		var known *problem
		if errors.As(err, &known) {
			response["error"], response["message"] = known.code, known.message
		} else if err != nil {
			response["error"], response["message"] = 0, err.Error()
		} else {
			response["result"] = result
		}
		if err := answers.Encode(response); err != nil {
			panic(err)
		}
	}
}

func open(kind string, c *call) (client, error) {
	if err := load(c.Descriptors); err != nil {
		return nil, err
	}
	if kind == "franz" {
		return newFranz(c)
	}
	return newConfluent(c)
}
