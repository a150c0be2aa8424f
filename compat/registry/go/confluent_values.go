package main

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry/serde"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry/serde/avrov2"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry/serde/jsonschema"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry/serde/protobuf"
	"github.com/hamba/avro/v2"
)

func (f *confluent) serializer(c *call) (serde.Serializer, error) {
	common := serde.NewSerializerConfig()
	given := c.Options
	if given.Auto != nil {
		common.AutoRegisterSchemas = *given.Auto
	}
	if given.UseID > 0 {
		common.UseSchemaID = given.UseID
	}
	common.UseLatestVersion, common.UseLatestWithMetadata = given.Latest, given.LatestWith
	common.NormalizeSchemas = given.Normalize
	name := func(topic string, _ serde.Type, _ schemaregistry.SchemaInfo) (string, error) {
		if given.Strategy == "TOPIC_RECORD" {
			return topic + "-" + given.Message, nil
		}
		return given.Message, nil
	}
	withRecord := given.Strategy == "RECORD" || given.Strategy == "TOPIC_RECORD"
	adjust := func(base *serde.BaseSerializer) {
		if given.Header {
			base.SchemaIDSerializer = serde.HeaderSchemaIDSerializer
		}
		if withRecord {
			base.SubjectNameStrategy = name
		}
	}
	switch c.Kind {
	case "AVRO":
		config := avrov2.NewSerializerConfig()
		config.SerializerConfig = *common
		made, err := avrov2.NewSerializer(f.client, serde.ValueSerde, config)
		adjust(&made.BaseSerializer)
		return made, err
	case "PROTOBUF":
		config := protobuf.NewSerializerConfig()
		config.SerializerConfig = *common
		made, err := protobuf.NewSerializer(f.client, serde.ValueSerde, config)
		adjust(&made.BaseSerializer)
		return made, err
	}
	config := jsonschema.NewSerializerConfig()
	config.SerializerConfig = *common
	config.EnableValidation = true
	made, err := jsonschema.NewSerializer(f.client, serde.ValueSerde, config)
	adjust(&made.BaseSerializer)
	return made, err
}

// native is the value that a serializer takes.
func native(c *call, value json.RawMessage) (any, error) {
	switch c.Kind {
	case "AVRO":
		if len(c.Options.Schema) == 0 {
			return orderOf(value)
		}
		var info schemaregistry.SchemaInfo
		if err := json.Unmarshal(c.Options.Schema, &info); err != nil {
			return nil, err
		}
		pingSchema = avro.MustParse(info.Schema)
		var made ping
		return &made, json.Unmarshal(value, &made)
	case "PROTOBUF":
		return messageOf(c.Options.Message, value)
	}
	made := map[string]any{}
	return &made, json.Unmarshal(value, &made)
}

func (f *confluent) serialize(c *call, values []json.RawMessage) ([]payload, error) {
	f.client.ClearCaches()
	serializer, err := f.serializer(c)
	if err != nil {
		return nil, err
	}
	made := []payload{}
	for _, value := range values {
		given, err := native(c, value)
		if err != nil {
			return nil, err
		}
		headers, bytes, err := serializer.SerializeWithHeaders(c.Topic, given)
		if err != nil {
			return nil, err
		}
		made = append(made, payload{bytes, plainHeaders(headers)})
	}
	return made, nil
}

func plainHeaders(headers []kafka.Header) []header {
	made := []header{}
	for _, each := range headers {
		made = append(made, header(each))
	}
	return made
}

func kafkaHeaders(headers []header) []kafka.Header {
	made := []kafka.Header{}
	for _, each := range headers {
		made = append(made, kafka.Header(each))
	}
	return made
}

func (f *confluent) reader(c *call) (func(string, []header, []byte) (any, error), error) {
	f.client.ClearCaches()
	var used serde.Deserializer
	var err error
	switch c.Kind {
	case "AVRO":
		config := avrov2.NewDeserializerConfig()
		config.UseLatestVersion = c.Latest
		used, err = avrov2.NewDeserializer(f.client, serde.ValueSerde, config)
	case "PROTOBUF":
		used, err = protobuf.NewDeserializer(f.client, serde.ValueSerde, protobuf.NewDeserializerConfig())
	default:
		// Its validation fails for every pointer, and pointers are what it takes.
		config := jsonschema.NewDeserializerConfig()
		used, err = jsonschema.NewDeserializer(f.client, serde.ValueSerde, config)
	}
	return func(topic string, headers []header, value []byte) (any, error) {
		given := kafkaHeaders(headers)
		switch c.Kind {
		case "AVRO":
			var made order
			err := used.DeserializeWithHeadersInto(topic, given, value, &made)
			return made.plain(), err
		case "PROTOBUF":
			made, err := newMessage(c.Message)
			if err == nil {
				err = used.DeserializeWithHeadersInto(topic, given, value, made)
			}
			return message{made}, err
		}
		made := map[string]any{}
		return made, used.DeserializeWithHeadersInto(topic, given, value, &made)
	}, err
}

func (f *confluent) produce(c *call, values []payload) error {
	producer, err := kafka.NewProducer(&kafka.ConfigMap{
		"bootstrap.servers": f.bootstrap, "log_level": 0,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	delivered := make(chan kafka.Event, len(values))
	for _, each := range values {
		place := kafka.TopicPartition{Topic: &c.Topic, Partition: 0}
		record := kafka.Message{
			TopicPartition: place, Value: each.Value, Headers: kafkaHeaders(each.Headers),
		}
		if err := producer.Produce(&record, delivered); err != nil {
			return err
		}
	}
	for range values {
		if err := (<-delivered).(*kafka.Message).TopicPartition.Error; err != nil {
			return err
		}
	}
	return nil
}

func (f *confluent) consume(
	c *call, read func(topic string, headers []header, value []byte) (bool, error),
) error {
	consumer, err := kafka.NewConsumer(&kafka.ConfigMap{
		"bootstrap.servers": f.bootstrap, "group.id": "registry-go", "log_level": 0,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	places := []kafka.TopicPartition{}
	for index := range c.Topics {
		places = append(places, kafka.TopicPartition{Topic: &c.Topics[index], Offset: 0})
	}
	if err := consumer.Assign(places); err != nil {
		return err
	}
	for end := time.Now().Add(readTime); time.Now().Before(end); {
		record, err := consumer.ReadMessage(200 * time.Millisecond)
		var known kafka.Error
		if errors.As(err, &known) && known.IsTimeout() {
			continue
		}
		if err != nil {
			return err
		}
		more, err := read(*record.TopicPartition.Topic, plainHeaders(record.Headers), record.Value)
		if err != nil || !more {
			return err
		}
	}
	return nil
}
