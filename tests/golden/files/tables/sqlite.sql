CREATE TABLE allotments (
	installation TEXT NOT NULL,
	uid INTEGER NOT NULL,
	pool TEXT NOT NULL,
	number INTEGER NOT NULL,
	at DATETIME NOT NULL,
	document JSON NOT NULL,
	CONSTRAINT pk_allotments PRIMARY KEY (installation, uid, pool, number),
	CONSTRAINT ck_allotments_number CHECK (number > 0)
)
CREATE TABLE answers (
	user TEXT NOT NULL,
	"key" TEXT NOT NULL,
	digest TEXT NOT NULL,
	answer JSON NOT NULL,
	at DATETIME NOT NULL,
	CONSTRAINT pk_answers PRIMARY KEY (user, "key")
)
CREATE INDEX ix_answers_at ON answers (at)
CREATE TABLE audit (
	id INTEGER NOT NULL,
	at DATETIME NOT NULL,
	user TEXT NOT NULL,
	action TEXT NOT NULL,
	object TEXT NOT NULL,
	status INTEGER NOT NULL,
	client TEXT NOT NULL,
	CONSTRAINT pk_audit PRIMARY KEY (id)
)
CREATE INDEX ix_audit_user ON audit (user)
CREATE TABLE budgets (
	name TEXT NOT NULL,
	usd FLOAT NOT NULL,
	CONSTRAINT pk_budgets PRIMARY KEY (name),
	CONSTRAINT ck_budgets_usd CHECK (usd >= 0)
)
CREATE TABLE claims (
	job_id TEXT NOT NULL,
	name TEXT NOT NULL,
	usd FLOAT NOT NULL,
	before_usd FLOAT NOT NULL,
	owner_pid INTEGER NOT NULL,
	owner_host TEXT NOT NULL,
	owner_started_at_s FLOAT NOT NULL,
	owner_birth TEXT,
	at DATETIME NOT NULL,
	CONSTRAINT pk_claims PRIMARY KEY (job_id),
	CONSTRAINT ck_claims_owner_pid CHECK (owner_pid > 0),
	CONSTRAINT ck_claims_usd CHECK (usd >= 0),
	CONSTRAINT ck_claims_before_usd CHECK (before_usd >= 0)
)
CREATE INDEX ix_claims_name ON claims (name)
CREATE TABLE convergence (
	id INTEGER NOT NULL,
	fingerprint_id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	global_batch_size INTEGER NOT NULL,
	epochs FLOAT NOT NULL,
	log_sd FLOAT NOT NULL,
	created_at DATETIME NOT NULL,
	CONSTRAINT pk_convergence PRIMARY KEY (id),
	CONSTRAINT uq_convergence_job_id UNIQUE (job_id),
	CONSTRAINT ck_convergence_global_batch_size CHECK (global_batch_size > 0),
	CONSTRAINT ck_convergence_epochs CHECK (epochs > 0),
	CONSTRAINT ck_convergence_log_sd CHECK (log_sd >= 0),
	CONSTRAINT fk_convergence_fingerprint_id FOREIGN KEY(fingerprint_id) REFERENCES fingerprints (id),
	CONSTRAINT fk_convergence_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE INDEX ix_convergence_fingerprint_id ON convergence (fingerprint_id)
CREATE TABLE desired (
	job_id TEXT NOT NULL,
	provider TEXT NOT NULL,
	region TEXT NOT NULL,
	document JSON NOT NULL,
	CONSTRAINT pk_desired PRIMARY KEY (job_id, provider, region),
	CONSTRAINT fk_desired_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)
CREATE TABLE events (
	id INTEGER NOT NULL,
	job_id TEXT NOT NULL,
	at DATETIME NOT NULL,
	level TEXT NOT NULL,
	kind TEXT NOT NULL,
	message TEXT NOT NULL,
	data JSON,
	CONSTRAINT pk_events PRIMARY KEY (id),
	CONSTRAINT ck_events_level CHECK (level IN ('info', 'warning', 'error')),
	CONSTRAINT fk_events_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE INDEX ix_events_job_id_id ON events (job_id, id)
CREATE TABLE fingerprints (
	id TEXT NOT NULL,
	architecture TEXT NOT NULL,
	parameters INTEGER NOT NULL,
	optimizer TEXT NOT NULL,
	dataset_size INTEGER NOT NULL,
	sample_bytes INTEGER NOT NULL,
	goal TEXT NOT NULL,
	vm TEXT NOT NULL,
	hardware TEXT NOT NULL,
	CONSTRAINT pk_fingerprints PRIMARY KEY (id),
	CONSTRAINT ck_fingerprints_dataset_size CHECK (dataset_size > 0),
	CONSTRAINT ck_fingerprints_parameters CHECK (parameters >= 0),
	CONSTRAINT ck_fingerprints_sample_bytes CHECK (sample_bytes >= 0)
)
CREATE INDEX ix_fingerprints_architecture_dataset_size ON fingerprints (architecture, dataset_size)
CREATE TABLE indicators (
	id INTEGER NOT NULL,
	job_id TEXT NOT NULL,
	at DATETIME NOT NULL,
	first_step INTEGER NOT NULL,
	last_step INTEGER NOT NULL,
	count INTEGER NOT NULL,
	total INTEGER NOT NULL,
	content BLOB NOT NULL,
	CONSTRAINT pk_indicators PRIMARY KEY (id),
	CONSTRAINT ck_indicators_count CHECK (count > 0),
	CONSTRAINT ck_indicators_total CHECK (total > 0),
	CONSTRAINT ck_indicators_first_step CHECK (first_step >= 0),
	CONSTRAINT fk_indicators_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE INDEX ix_indicators_job_id_id ON indicators (job_id, id)
CREATE TABLE installation (
	id TEXT NOT NULL,
	CONSTRAINT pk_installation PRIMARY KEY (id)
)
CREATE TABLE intents (
	number INTEGER NOT NULL,
	id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	slot INTEGER NOT NULL,
	generation INTEGER NOT NULL,
	provider TEXT NOT NULL,
	region TEXT NOT NULL,
	request JSON NOT NULL,
	price_usd_per_hour FLOAT NOT NULL,
	disk_usd_per_hour FLOAT,
	address_usd_per_hour FLOAT NOT NULL,
	reserved_usd FLOAT NOT NULL,
	attempt INTEGER NOT NULL,
	state TEXT NOT NULL,
	asked BOOLEAN NOT NULL,
	instance_id TEXT NOT NULL,
	acks INTEGER NOT NULL,
	billed_s FLOAT NOT NULL,
	spent_usd FLOAT NOT NULL,
	disk_after_s FLOAT NOT NULL,
	charged_at DATETIME,
	launched_at DATETIME,
	ended_at DATETIME,
	ending TEXT NOT NULL,
	reason TEXT NOT NULL,
	created_at DATETIME NOT NULL,
	last_ack_at DATETIME,
	joined_at DATETIME,
	taken_at DATETIME,
	CONSTRAINT pk_intents PRIMARY KEY (number),
	CONSTRAINT uq_intents_id UNIQUE (id),
	CONSTRAINT uq_intents_job_id_slot_generation UNIQUE (job_id, slot, generation),
	CONSTRAINT ck_intents_state CHECK (state IN ('PLAN', 'UP', 'DELETING', 'GONE')),
	CONSTRAINT ck_intents_ending CHECK (ending IN ('', 'unwanted', 'budget', 'never_joined', 'silent', 'died', 'preempted', 'unanswered', 'stock_out', 'quota', 'refused')),
	CONSTRAINT ck_intents_ended CHECK ((ending = '') = (state IN ('PLAN', 'UP'))),
	CONSTRAINT ck_intents_up CHECK (state != 'UP' OR instance_id != ''),
	CONSTRAINT ck_intents_asked CHECK (asked OR instance_id = ''),
	CONSTRAINT ck_intents_attempt CHECK (attempt > 0),
	CONSTRAINT ck_intents_price_usd_per_hour CHECK (price_usd_per_hour >= 0),
	CONSTRAINT ck_intents_slot CHECK (slot >= 0),
	CONSTRAINT ck_intents_generation CHECK (generation >= 0),
	CONSTRAINT ck_intents_reserved_usd CHECK (reserved_usd >= 0),
	CONSTRAINT ck_intents_acks CHECK (acks >= 0),
	CONSTRAINT ck_intents_billed_s CHECK (billed_s >= 0),
	CONSTRAINT ck_intents_spent_usd CHECK (spent_usd >= 0),
	CONSTRAINT ck_intents_disk_usd_per_hour CHECK (disk_usd_per_hour >= 0),
	CONSTRAINT ck_intents_address_usd_per_hour CHECK (address_usd_per_hour >= 0),
	CONSTRAINT ck_intents_disk_after_s CHECK (disk_after_s >= 0),
	CONSTRAINT fk_intents_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)
CREATE INDEX ix_intents_state_provider_region ON intents (state, provider, region)
CREATE TABLE jobs (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	state TEXT NOT NULL,
	phase TEXT NOT NULL,
	detail TEXT NOT NULL,
	spec JSON NOT NULL,
	job_file TEXT NOT NULL,
	owner_pid INTEGER NOT NULL,
	owner_host TEXT NOT NULL,
	owner_started_at_s FLOAT NOT NULL,
	owner_user TEXT,
	owner_uid INTEGER,
	owner_birth TEXT,
	owner_installation TEXT,
	heartbeat_at DATETIME NOT NULL,
	created_at DATETIME NOT NULL,
	started_at DATETIME,
	ended_at DATETIME,
	step INTEGER,
	cost_usd FLOAT,
	fingerprint_id TEXT,
	chosen_vm TEXT,
	chosen_workers INTEGER,
	chosen_global_batch_size INTEGER,
	predicted JSON,
	actual JSON,
	report JSON,
	error TEXT NOT NULL,
	exit_code INTEGER,
	model_path TEXT,
	measurements_path TEXT,
	checkpoint TEXT,
	attempts INTEGER DEFAULT '1' NOT NULL,
	CONSTRAINT pk_jobs PRIMARY KEY (id),
	CONSTRAINT ck_jobs_state CHECK (state IN ('starting', 'profiling', 'planned', 'running', 'paused', 'succeeded', 'target_missed', 'failed', 'stopped', 'interrupted')),
	CONSTRAINT ck_jobs_ended CHECK ((ended_at IS NULL) = (state IN ('starting', 'profiling', 'running', 'paused'))),
	CONSTRAINT ck_jobs_chosen CHECK ((chosen_vm IS NULL) = (chosen_workers IS NULL) AND (chosen_vm IS NULL) = (chosen_global_batch_size IS NULL)),
	CONSTRAINT ck_jobs_chosen_size CHECK (chosen_workers > 0 AND chosen_global_batch_size >= chosen_workers),
	CONSTRAINT ck_jobs_owner_pid CHECK (owner_pid > 0),
	CONSTRAINT ck_jobs_attempts CHECK (attempts > 0),
	CONSTRAINT ck_jobs_step CHECK (step >= 0),
	CONSTRAINT ck_jobs_cost_usd CHECK (cost_usd >= 0),
	CONSTRAINT fk_jobs_fingerprint_id FOREIGN KEY(fingerprint_id) REFERENCES fingerprints (id)
)
CREATE INDEX ix_jobs_created_at ON jobs (created_at)
CREATE INDEX ix_jobs_ended_at ON jobs (ended_at)
CREATE INDEX ix_jobs_fingerprint_id ON jobs (fingerprint_id)
CREATE INDEX ix_jobs_name_created_at ON jobs (name, created_at)
CREATE INDEX ix_jobs_state ON jobs (state)
CREATE TABLE leases (
	name TEXT NOT NULL,
	holder TEXT NOT NULL,
	token INTEGER NOT NULL,
	beats INTEGER NOT NULL,
	CONSTRAINT pk_leases PRIMARY KEY (name),
	CONSTRAINT ck_leases_token CHECK (token > 0),
	CONSTRAINT ck_leases_beats CHECK (beats >= 0)
)
CREATE TABLE ledger (
	job_id TEXT NOT NULL,
	item TEXT NOT NULL,
	month TEXT NOT NULL,
	name TEXT NOT NULL,
	user TEXT NOT NULL,
	quantity FLOAT NOT NULL,
	usd FLOAT NOT NULL,
	basis TEXT NOT NULL,
	CONSTRAINT pk_ledger PRIMARY KEY (job_id, item, month),
	CONSTRAINT ck_ledger_item CHECK (item IN ('workers', 'vms', 'disks', 'addresses', 'traffic', 'share', 'leader', 'earlier', 'pool'))
)
CREATE INDEX ix_ledger_month ON ledger (month)
CREATE INDEX ix_ledger_name ON ledger (name)
CREATE TABLE measurements (
	id INTEGER NOT NULL,
	job_id TEXT NOT NULL,
	vm TEXT NOT NULL,
	workers INTEGER NOT NULL,
	global_batch_size INTEGER NOT NULL,
	steps INTEGER NOT NULL,
	step_time_s FLOAT NOT NULL,
	step_time_spread_s FLOAT NOT NULL,
	compute_s FLOAT NOT NULL,
	sync_s FLOAT NOT NULL,
	gradient_noise FLOAT,
	noise_scale FLOAT,
	memory_bytes INTEGER NOT NULL,
	CONSTRAINT pk_measurements PRIMARY KEY (id),
	CONSTRAINT uq_measurements_job_id_vm_workers_global_batch_size UNIQUE (job_id, vm, workers, global_batch_size),
	CONSTRAINT ck_measurements_configuration CHECK (workers > 0 AND global_batch_size >= workers),
	CONSTRAINT ck_measurements_steps CHECK (steps > 0),
	CONSTRAINT ck_measurements_step_time_s CHECK (step_time_s > 0),
	CONSTRAINT ck_measurements_step_time_spread_s CHECK (step_time_spread_s >= 0),
	CONSTRAINT ck_measurements_compute_s CHECK (compute_s >= 0),
	CONSTRAINT ck_measurements_sync_s CHECK (sync_s >= 0),
	CONSTRAINT ck_measurements_memory_bytes CHECK (memory_bytes >= 0),
	CONSTRAINT fk_measurements_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE TABLE models (
	id TEXT NOT NULL,
	fingerprint_id TEXT NOT NULL,
	model TEXT NOT NULL,
	schema_version INTEGER NOT NULL,
	measurements INTEGER NOT NULL,
	runs INTEGER NOT NULL,
	job_id TEXT,
	origin TEXT NOT NULL,
	created_at DATETIME NOT NULL,
	CONSTRAINT pk_models PRIMARY KEY (id),
	CONSTRAINT ck_models_origin CHECK (origin IN ('local', 'imported')),
	CONSTRAINT ck_models_schema_version CHECK (schema_version > 0),
	CONSTRAINT ck_models_measurements CHECK (measurements >= 0),
	CONSTRAINT ck_models_runs CHECK (runs >= 0),
	CONSTRAINT fk_models_fingerprint_id FOREIGN KEY(fingerprint_id) REFERENCES fingerprints (id),
	CONSTRAINT fk_models_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE SET NULL
)
CREATE INDEX ix_models_created_at ON models (created_at)
CREATE INDEX ix_models_fingerprint_id ON models (fingerprint_id)
CREATE TABLE notifications (
	number INTEGER NOT NULL,
	id TEXT NOT NULL,
	webhook TEXT NOT NULL,
	kind TEXT NOT NULL,
	at DATETIME NOT NULL,
	text TEXT NOT NULL,
	data JSON NOT NULL,
	state TEXT NOT NULL,
	attempts INTEGER NOT NULL,
	due_at DATETIME NOT NULL,
	error TEXT NOT NULL,
	CONSTRAINT pk_notifications PRIMARY KEY (number),
	CONSTRAINT ck_notifications_kind CHECK (kind IN ('ping', 'job.done', 'job.failed', 'job.stopped', 'job.paused', 'job.budget', 'user.budget', 'service.budget', 'vms.leftover')),
	CONSTRAINT ck_notifications_state CHECK (state IN ('waiting', 'delivered', 'refused')),
	CONSTRAINT ck_notifications_attempts CHECK (attempts >= 0),
	CONSTRAINT uq_notifications_webhook_id UNIQUE (webhook, id)
)
CREATE INDEX ix_notifications_state_webhook_due_at ON notifications (state, webhook, due_at)
CREATE TABLE operations (
	id INTEGER NOT NULL,
	job_id TEXT NOT NULL,
	operation JSON NOT NULL,
	requested_by TEXT NOT NULL,
	state TEXT NOT NULL,
	message TEXT NOT NULL,
	requested_at DATETIME NOT NULL,
	started_at DATETIME,
	ended_at DATETIME,
	CONSTRAINT pk_operations PRIMARY KEY (id),
	CONSTRAINT ck_operations_state CHECK (state IN ('pending', 'running', 'done', 'refused', 'failed')),
	CONSTRAINT ck_operations_ended CHECK ((ended_at IS NULL) = (state IN ('pending', 'running'))),
	CONSTRAINT ck_operations_started CHECK (state != 'pending' OR started_at IS NULL),
	CONSTRAINT fk_operations_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE INDEX ix_operations_job_id_id ON operations (job_id, id)
CREATE UNIQUE INDEX uq_operations_open ON operations (job_id) WHERE ended_at IS NULL
CREATE TABLE processes (
	job_id TEXT NOT NULL,
	process TEXT NOT NULL,
	role TEXT NOT NULL,
	pid INTEGER,
	state TEXT NOT NULL,
	detail TEXT NOT NULL,
	step INTEGER,
	view_number INTEGER,
	updated_at DATETIME NOT NULL,
	host TEXT,
	CONSTRAINT pk_processes PRIMARY KEY (job_id, process),
	CONSTRAINT ck_processes_role CHECK (role IN ('coordinator', 'worker', 'aggregator')),
	CONSTRAINT ck_processes_state CHECK (state IN ('starting', 'ready', 'training', 'leaving', 'lost', 'failed', 'gone')),
	CONSTRAINT ck_processes_pid CHECK (pid > 0),
	CONSTRAINT ck_processes_step CHECK (step >= 0),
	CONSTRAINT ck_processes_view_number CHECK (view_number >= 0),
	CONSTRAINT fk_processes_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE TABLE quarantine (
	provider TEXT NOT NULL,
	region TEXT NOT NULL,
	instance_id TEXT NOT NULL,
	vm TEXT NOT NULL,
	zone TEXT NOT NULL,
	job_id TEXT NOT NULL,
	launched_at DATETIME,
	kept_by TEXT,
	CONSTRAINT pk_quarantine PRIMARY KEY (provider, region, instance_id)
)
CREATE TABLE restores (
	id INTEGER NOT NULL,
	at DATETIME NOT NULL,
	backup_at DATETIME NOT NULL,
	token_floor INTEGER NOT NULL,
	looked_at DATETIME,
	CONSTRAINT pk_restores PRIMARY KEY (id),
	CONSTRAINT ck_restores_token_floor CHECK (token_floor > 0)
)
CREATE TABLE servers (
	id TEXT NOT NULL,
	host TEXT NOT NULL,
	pid INTEGER NOT NULL,
	started_at_s FLOAT NOT NULL,
	birth TEXT,
	installation TEXT,
	user TEXT NOT NULL,
	uid INTEGER NOT NULL,
	address TEXT NOT NULL,
	version TEXT NOT NULL,
	background BOOLEAN NOT NULL,
	started_at DATETIME NOT NULL,
	heartbeat_at DATETIME NOT NULL,
	pools JSON,
	CONSTRAINT pk_servers PRIMARY KEY (id),
	CONSTRAINT ck_servers_pid CHECK (pid > 0),
	CONSTRAINT ck_servers_uid CHECK (uid >= 0)
)
CREATE TABLE submissions (
	number INTEGER NOT NULL,
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	spec JSON NOT NULL,
	job_file TEXT NOT NULL,
	user TEXT NOT NULL,
	host TEXT NOT NULL,
	installation TEXT,
	uid INTEGER NOT NULL,
	rents BOOLEAN NOT NULL,
	reserved_usd FLOAT,
	audit BOOLEAN NOT NULL,
	priority INTEGER NOT NULL,
	idempotency_key TEXT,
	run BOOLEAN,
	study_workers INTEGER,
	environment TEXT,
	state TEXT NOT NULL,
	reason TEXT NOT NULL,
	cancelling BOOLEAN NOT NULL,
	starts INTEGER NOT NULL,
	fruitless INTEGER NOT NULL,
	faults INTEGER,
	step INTEGER,
	submitted_at DATETIME NOT NULL,
	started_at DATETIME,
	ended_at DATETIME,
	standing JSON,
	CONSTRAINT pk_submissions PRIMARY KEY (number),
	CONSTRAINT uq_submissions_id UNIQUE (id),
	CONSTRAINT uq_submissions_user_idempotency_key UNIQUE (user, idempotency_key),
	CONSTRAINT ck_submissions_state CHECK (state IN ('queued', 'running', 'ended', 'cancelled')),
	CONSTRAINT ck_submissions_ended CHECK ((ended_at IS NULL) = (state IN ('queued', 'running'))),
	CONSTRAINT ck_submissions_started CHECK (state != 'running' OR started_at IS NOT NULL),
	CONSTRAINT ck_submissions_uid CHECK (uid >= 0),
	CONSTRAINT ck_submissions_reserved_usd CHECK (reserved_usd >= 0),
	CONSTRAINT ck_submissions_study_workers CHECK (study_workers >= 0),
	CONSTRAINT ck_submissions_starts CHECK (starts >= 0),
	CONSTRAINT ck_submissions_fruitless CHECK (fruitless >= 0),
	CONSTRAINT ck_submissions_step CHECK (step >= 0)
)
CREATE INDEX ix_submissions_state_host_uid ON submissions (state, host, uid)
CREATE TABLE tokens (
	id INTEGER NOT NULL,
	digest TEXT NOT NULL,
	user TEXT NOT NULL,
	label TEXT NOT NULL,
	created_at DATETIME NOT NULL,
	expires_at DATETIME,
	parent INTEGER,
	is_session BOOLEAN,
	CONSTRAINT pk_tokens PRIMARY KEY (id),
	CONSTRAINT uq_tokens_digest UNIQUE (digest),
	CONSTRAINT fk_tokens_user FOREIGN KEY(user) REFERENCES users (name) ON DELETE CASCADE
)
CREATE INDEX ix_tokens_parent ON tokens (parent)
CREATE INDEX ix_tokens_user ON tokens (user)
CREATE TABLE users (
	name TEXT NOT NULL,
	role TEXT NOT NULL,
	created_at DATETIME NOT NULL,
	CONSTRAINT pk_users PRIMARY KEY (name),
	CONSTRAINT ck_users_role CHECK (role IN ('admin', 'user', 'viewer'))
)
