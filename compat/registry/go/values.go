package main

import (
	"encoding/json"
	"time"

	"github.com/hamba/avro/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// order is the record of the Avro schemas. Avro has its time as a time, JSON as milliseconds.
type order struct {
	ID       int64            `avro:"id" json:"id"`
	Customer string           `avro:"customer" json:"customer"`
	Amount   float64          `avro:"amount" json:"amount"`
	Paid     bool             `avro:"paid" json:"paid"`
	Note     *string          `avro:"note" json:"note"`
	Status   string           `avro:"status" json:"status"`
	Tags     []string         `avro:"tags" json:"tags"`
	Counts   map[string]int64 `avro:"counts" json:"counts"`
	Token    []byte           `avro:"token" json:"token"`
	Placed   time.Time        `avro:"placed" json:"-"`
	Millis   int64            `avro:"-" json:"placed"`
	Address  address          `avro:"address" json:"address"`
	Source   string           `avro:"source" json:"source,omitempty"`
}

type address struct {
	Street string `avro:"street" json:"street"`
	Number int32  `avro:"number" json:"number"`
}

// ping is a record whose schema the serializer registers.
type ping struct {
	ID   int64  `avro:"id" json:"id"`
	Text string `avro:"text" json:"text"`
}

// pingSchema is the schema that the serializer registers for ping.
var pingSchema avro.Schema

func (p *ping) Schema() avro.Schema { return pingSchema }

func orderOf(value json.RawMessage) (*order, error) {
	var made order
	err := json.Unmarshal(value, &made)
	made.Placed = time.UnixMilli(made.Millis)
	return &made, err
}

func (o *order) plain() *order {
	o.Millis = o.Placed.UnixMilli()
	return o
}

// message is a Protobuf message as a JSON value.
type message struct{ proto.Message }

func (m message) MarshalJSON() ([]byte, error) { return protojson.Marshal(m.Message) }

func messageOf(name string, value json.RawMessage) (*dynamicpb.Message, error) {
	made, err := newMessage(name)
	if err == nil && value != nil {
		err = protojson.Unmarshal(value, made)
	}
	return made, err
}

// indexOf is the place of a message's type in its file.
func indexOf(descriptor protoreflect.Descriptor) []int {
	if outer, nested := descriptor.Parent().(protoreflect.MessageDescriptor); nested {
		return append(indexOf(outer), descriptor.Index())
	}
	return []int{descriptor.Index()}
}
