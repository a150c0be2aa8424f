package main

import (
	"encoding/json"
	"errors"

	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry/rest"
)

// confluent is confluent-kafka-go's client, serializers, producer and consumer.
type confluent struct {
	client    schemaregistry.Client
	bootstrap string
}

func newConfluent(c *call) (client, error) {
	config := schemaregistry.NewConfig(c.Registry)
	config.MaxRetries = 0
	made, err := schemaregistry.NewClient(config)
	return &confluent{client: made, bootstrap: c.Bootstrap}, err
}

func (f *confluent) version() string {
	return versionOf("github.com/confluentinc/confluent-kafka-go/v2")
}

func (f *confluent) answer(c *call) (any, error) {
	if err := f.client.ClearCaches(); err != nil {
		return nil, err
	}
	var schema schemaregistry.SchemaInfo
	if len(c.Schema) > 0 {
		if err := json.Unmarshal(c.Schema, &schema); err != nil {
			return nil, err
		}
	}
	result, err := f.operation(c, schema)
	var known *rest.Error
	if errors.As(err, &known) {
		return nil, &problem{known.Code, known.Message}
	}
	return result, err
}

func (f *confluent) operation(c *call, schema schemaregistry.SchemaInfo) (any, error) {
	switch c.Op {
	case "contexts":
		return f.client.GetAllContexts()
	case "subjects":
		return f.client.GetAllSubjects()
	case "register":
		return registered(f.client.RegisterFullResponse(c.Subject, schema, c.Normalize))
	case "by_id":
		found, err := f.client.GetBySubjectAndID(c.Subject, c.SchemaID)
		return &found, err
	case "by_guid":
		found, err := f.client.GetByGUID(c.GUID)
		return &found, err
	case "versions_of_id":
		return pairs(f.client.GetSubjectsAndVersionsByID(c.SchemaID))
	case "lookup":
		return f.lookup(c, schema)
	case "versions":
		return f.client.GetAllVersions(c.Subject)
	case "version":
		return registered(f.client.GetSchemaMetadataIncludeDeleted(c.Subject, c.number(), c.Deleted))
	case "latest":
		return registered(f.client.GetLatestSchemaMetadata(c.Subject))
	case "latest_with_metadata":
		return registered(f.client.GetLatestWithMetadata(c.Subject, c.Metadata, false))
	case "delete_version":
		return f.client.DeleteSubjectVersion(c.Subject, c.number(), c.Permanent)
	case "delete_subject":
		return f.client.DeleteSubject(c.Subject, c.Permanent)
	case "compatible":
		if c.number() == -1 {
			return f.client.TestSubjectCompatibility(c.Subject, schema)
		}
		return f.client.TestCompatibility(c.Subject, c.number(), schema)
	}
	return f.setting(c)
}

// lookup returns the version with the schema. The client has another method for deleted versions,
// which returns only the number.
func (f *confluent) lookup(c *call, schema schemaregistry.SchemaInfo) (any, error) {
	if !c.Deleted {
		return registered(f.client.GetIDFullResponse(c.Subject, schema, c.Normalize))
	}
	number, err := f.client.GetVersionIncludeDeleted(c.Subject, schema, c.Normalize, true)
	if err != nil {
		return nil, err
	}
	return registered(f.client.GetSchemaMetadataIncludeDeleted(c.Subject, number, true))
}

func (f *confluent) setting(c *call) (any, error) {
	level := schemaregistry.Compatibility(0)
	if c.Level != "" {
		if err := level.ParseString(c.Level); err != nil {
			return nil, err
		}
	}
	var config schemaregistry.ServerConfig
	if len(c.Config) > 0 {
		if err := json.Unmarshal(c.Config, &config); err != nil {
			return nil, err
		}
	}
	global := c.Subject == ""
	switch {
	case c.Op == "compatibility" && global:
		return text(f.client.GetDefaultCompatibility())
	case c.Op == "compatibility":
		return text(f.client.GetCompatibility(c.Subject))
	case c.Op == "set_compatibility" && global:
		return text(f.client.UpdateDefaultCompatibility(level))
	case c.Op == "set_compatibility":
		return text(f.client.UpdateCompatibility(c.Subject, level))
	case c.Op == "config" && global:
		return settings(f.client.GetDefaultConfig())
	case c.Op == "config":
		return settings(f.client.GetConfig(c.Subject, false))
	case c.Op == "set_config" && global:
		return settings(f.client.UpdateDefaultConfig(config))
	case c.Op == "set_config":
		return settings(f.client.UpdateConfig(c.Subject, config))
	}
	return nil, errors.New("unknown operation " + c.Op)
}

func registered(found schemaregistry.SchemaMetadata, err error) (any, error) { return &found, err }

func settings(found schemaregistry.ServerConfig, err error) (any, error) { return &found, err }

func text(found schemaregistry.Compatibility, err error) (any, error) { return found.String(), err }

func pairs(found []schemaregistry.SubjectAndVersion, err error) (any, error) {
	made := [][]any{}
	for _, each := range found {
		made = append(made, []any{each.Subject, each.Version})
	}
	return made, err
}
