// Command provider is dex with one client and one user, in memory.
//
//	provider ADDRESS REDIRECT_URI
//
// The issuer is http://ADDRESS/dex. Client, secret, user and groups are those of the tests in e2e/test_oidc.py.
// Dex's own main package also serves its gRPC API, whose module is not published for every commit.
package main

import (
	"context"
	"log"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/server/authflow"
	"github.com/dexidp/dex/server/connectors"
	"github.com/dexidp/dex/server/signer"
	"github.com/dexidp/dex/server/tokens"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"golang.org/x/crypto/bcrypt"
)

const idTokensValidFor = 10 * time.Minute

func main() {
	address, redirect := os.Args[1], os.Args[2]
	handler, err := provider("http://"+address+"/dex", redirect)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(address, handler))
}

func provider(issuer, redirect string) (http.Handler, error) {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	data, err := accounts(redirect, logger)
	if err != nil {
		return nil, err
	}
	keys := signer.LocalConfig{KeysRotationPeriod: "6h"}
	signing, err := keys.Open(context.Background(), data, idTokensValidFor, time.Now, logger)
	if err != nil {
		return nil, err
	}
	refresh, err := tokens.NewRefreshTokenPolicy(logger, false, "", "", "")
	if err != nil {
		return nil, err
	}
	return server.NewServer(context.Background(), server.Config{
		Issuer:             issuer,
		Storage:            data,
		Signer:             signing,
		Logger:             logger,
		IDTokensValidFor:   idTokensValidFor,
		RefreshTokenPolicy: refresh,
		SkipApprovalScreen: true,
		PasswordConnector:  connectors.LocalConnector,
		PKCE:               authflow.PKCEConfig{Enforce: true},
	})
}

func accounts(redirect string, logger *slog.Logger) (storage.Storage, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte("password"), bcrypt.DefaultCost)
	if err != nil {
		return nil, err
	}
	gpufleet := storage.Client{ID: "gpufleet", Secret: "s3cr3t/+ %", Name: "gpufleet", RedirectURIs: []string{redirect}}
	other := storage.Client{ID: "other", Secret: "secret", Name: "other", RedirectURIs: []string{redirect}}
	alice := storage.Password{
		Email:    "alice@example.com",
		Hash:     hash,
		Username: "alice",
		UserID:   "0001",
		Groups:   []string{"staff", "others"},
	}
	local := storage.Connector{ID: connectors.LocalConnector, Name: "Email", Type: connectors.LocalConnector}
	data := storage.WithStaticClients(memory.New(logger), []storage.Client{gpufleet, other})
	data = storage.WithStaticPasswords(data, []storage.Password{alice}, logger)
	return storage.WithStaticConnectors(data, []storage.Connector{local}), nil
}
