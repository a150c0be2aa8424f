package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
)

// avroSchema parses a schema after those that it refers to.
func (f *franz) avroSchema(ctx context.Context, schema sr.Schema) (avro.Schema, error) {
	cache := &avro.SchemaCache{}
	var parse func(schema sr.Schema) (avro.Schema, error)
	parse = func(schema sr.Schema) (avro.Schema, error) {
		for _, reference := range schema.References {
			found, err := f.client.SchemaByVersion(ctx, reference.Subject, reference.Version)
			if err == nil {
				_, err = parse(found.Schema)
			}
			if err != nil {
				return nil, err
			}
		}
		return avro.ParseWithCache(schema.Schema, "", cache)
	}
	return parse(schema)
}

// register makes the Serde read and write values of one schema.
func (f *franz) register(used *sr.Serde, c *call, id int, schema sr.Schema) error {
	switch c.Kind {
	case "AVRO":
		parsed, err := f.avroSchema(context.Background(), schema)
		if err != nil {
			return err
		}
		used.Register(id, &order{},
			sr.EncodeFn(func(value any) ([]byte, error) { return avro.Marshal(parsed, value) }),
			sr.DecodeFn(func(b []byte, value any) error { return avro.Unmarshal(parsed, b, value) }),
			sr.GenerateFn(func() any { return &order{} }),
		)
	case "PROTOBUF":
		sample, err := newMessage(c.Message + c.Options.Message)
		if err != nil {
			return err
		}
		used.Register(id, sample,
			sr.EncodeFn(func(value any) ([]byte, error) { return proto.Marshal(value.(proto.Message)) }),
			sr.DecodeFn(func(b []byte, value any) error {
				return proto.Unmarshal(b, value.(proto.Message))
			}),
			sr.GenerateFn(func() any { return dynamicpb.NewMessage(sample.Descriptor()) }),
			sr.Index(indexOf(sample.Descriptor())...),
		)
	default:
		used.Register(id, map[string]any{},
			sr.EncodeFn(json.Marshal), sr.DecodeFn(json.Unmarshal),
			sr.GenerateFn(func() any { return &map[string]any{} }),
		)
	}
	return nil
}

// serialize writes values by the newest version of the topic's subject.
func (f *franz) serialize(c *call, values []json.RawMessage) ([]payload, error) {
	found, err := f.client.SchemaByVersion(context.Background(), c.Topic+"-value", -1)
	if err != nil {
		return nil, err
	}
	used := sr.NewSerde()
	if err := f.register(used, c, found.ID, found.Schema); err != nil {
		return nil, err
	}
	made := []payload{}
	for _, value := range values {
		var given any
		switch c.Kind {
		case "AVRO":
			given, err = orderOf(value)
		case "PROTOBUF":
			given, err = messageOf(c.Options.Message, value)
		default:
			found := map[string]any{}
			err = json.Unmarshal(value, &found)
			given = found
		}
		if err != nil {
			return nil, err
		}
		bytes, err := used.Encode(given)
		if err != nil {
			return nil, err
		}
		made = append(made, payload{bytes, []header{}})
	}
	return made, nil
}

func (f *franz) reader(c *call) (func(string, []header, []byte) (any, error), error) {
	used := sr.NewSerde()
	return func(_ string, _ []header, value []byte) (any, error) {
		id, _, err := used.DecodeID(value)
		if err != nil {
			return nil, err
		}
		if !used.IsRegistered(id, sr.DecodeFn) {
			schema, err := f.client.SchemaByID(context.Background(), id)
			if err == nil {
				err = f.register(used, c, id, schema)
			}
			if err != nil {
				return nil, err
			}
		}
		made, err := used.DecodeNew(value)
		switch found := made.(type) {
		case *order:
			return found.plain(), err
		case *dynamicpb.Message:
			return message{found}, err
		}
		return made, err
	}, nil
}

func (f *franz) kafka(more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(f.bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.DisableClientMetrics(),
		kgo.ProducerBatchCompression(kgo.NoCompression()), // KafkaJS reads no snappy
	}, more...)...)
}

func (f *franz) produce(c *call, values []payload) error {
	producer, err := f.kafka()
	if err != nil {
		return err
	}
	defer producer.Close()
	records := []*kgo.Record{}
	for _, each := range values {
		records = append(records, &kgo.Record{Topic: c.Topic, Value: each.Value})
	}
	return producer.ProduceSync(context.Background(), records...).FirstErr()
}

func (f *franz) consume(
	c *call, read func(topic string, headers []header, value []byte) (bool, error),
) error {
	places := map[string]map[int32]kgo.Offset{}
	for _, topic := range c.Topics {
		places[topic] = map[int32]kgo.Offset{0: kgo.NewOffset().At(0)}
	}
	consumer, err := f.kafka(kgo.ConsumePartitions(places))
	if err != nil {
		return err
	}
	defer consumer.Close()
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	for more := true; more && err == nil && ctx.Err() == nil; {
		fetched := consumer.PollFetches(ctx)
		for _, record := range fetched.Records() {
			headers := []header{}
			for _, each := range record.Headers {
				headers = append(headers, header(each))
			}
			if more, err = read(record.Topic, headers, record.Value); err != nil {
				return err
			}
		}
	}
	return err
}
