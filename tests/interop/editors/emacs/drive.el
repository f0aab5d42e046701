;;; drive.el --- An ACP client of acp.el that does the steps it is given  -*- lexical-binding: t; -*-

;; emacs --batch -L ACP.EL -l drive.el JSON
;; tests/interop/editors/clients.py says which steps there are.

(require 'acp)
(require 'seq)

(defvar drive-given (acp--parse-json (pop command-line-args-left)))
(defvar drive-client nil)
(defvar drive-session nil)
(defvar drive-step nil "The running one.")
(defvar drive-said "")
(defvar drive-cancelled nil)

(defun drive-tell (event &rest fields)
  "Print EVENT with FIELDS, an alist, as a line of JSON."
  (princ (decode-coding-string (json-serialize `((event . ,event) ,@fields) :null-object nil :false-object :false) 'utf-8))
  (terpri))

(defun drive-notified (notification)
  "Tell of NOTIFICATION; cancel the prompt where the step says so."
  (let-alist notification
    (cond
     ((equal .method "session/update")
      (drive-tell "update" `(session . ,.params.sessionId) `(update . ,.params.update))
      (when (equal .params.update.sessionUpdate "agent_message_chunk")
        (setq drive-said (concat drive-said (map-nested-elt .params.update '(content text)))))
      (let ((at (map-elt drive-step 'cancel_at)))
        (when (and at (not drive-cancelled) (string-search at drive-said))
          (setq drive-cancelled t)
          (acp-send-notification
           :client drive-client
           :notification (acp-make-session-cancel-notification :session-id drive-session)))))
     ((equal .method "$/cancel_request")
      (drive-tell "cancel_request" `(id . ,.params.requestId))))))

(defun drive-asked (request)
  "Answer REQUEST as the step says."
  (let-alist request
    (cond
     ((equal .method "session/request_permission")
      (drive-tell "permission" `(id . ,.id) `(params . ,.params))
      (let* ((kind (if (equal (map-elt drive-step 'answer) "reject") "reject_once" "allow_once"))
             (chosen (seq-find (lambda (option) (equal (map-elt option 'kind) kind)) .params.options)))
        (acp-send-response
         :client drive-client
         :response (acp-make-session-request-permission-response
                    :request-id .id :option-id (map-elt chosen 'optionId)))))
     ((equal .method "fs/read_text_file")
      (acp-send-response
       :client drive-client
       :response (acp-make-fs-read-text-file-response
                  :request-id .id
                  :content (with-temp-buffer (insert-file-contents .params.path) (buffer-string)))))
     ((equal .method "fs/write_text_file")
      (with-temp-file .params.path (insert .params.content))
      (acp-send-response
       :client drive-client :response (acp-make-fs-write-text-file-response :request-id .id))))))

(defun drive-request (step)
  "The request of STEP."
  (let ((cwd (map-elt drive-given 'cwd)))
    (let-alist step
      (pcase .do
        ("initialize" (acp-make-initialize-request
                       :protocol-version 1 :client-info '((name . "ostler-tests") (version . "1"))
                       :read-text-file-capability t :write-text-file-capability t))
        ("new" (acp-make-session-new-request :cwd cwd))
        ("load" (setq drive-session .session)
         (acp-make-session-load-request :session-id .session :cwd cwd))
        ("list" (acp-make-session-list-request :cwd cwd))
        ("mode" (acp-make-session-set-mode-request :session-id drive-session :mode-id .mode))
        ("prompt" (acp-make-session-prompt-request
                   :session-id drive-session :prompt `[((type . "text") (text . ,.text))]))))))

(defun drive-do (number step)
  "Do STEP, which is the one with this NUMBER, to its end."
  (let (done)
    (setq drive-step step drive-said "" drive-cancelled nil)
    (acp-send-request
     :client drive-client
     :request (drive-request step)
     :on-success (lambda (result)
                   (when (map-elt result 'sessionId) (setq drive-session (map-elt result 'sessionId)))
                   (drive-tell "answer" `(step . ,number) `(do . ,(map-elt step 'do)) `(result . ,result))
                   (setq done t))
     :on-failure (lambda (error)
                   (drive-tell "answer" `(step . ,number) `(do . ,(map-elt step 'do)) `(error . ,error))
                   (setq done t)))
    (while (not done) (accept-process-output nil 0.05))))

(let ((command (append (map-elt drive-given 'command) nil))
      (default-directory (file-name-as-directory (map-elt drive-given 'cwd))))
  (setq drive-client
        (acp-make-client
         :command (car command) :command-params (cdr command)
         :environment-variables
         (map-apply (lambda (name value) (format "%s=%s" name value)) (map-elt drive-given 'env))))
  (acp-subscribe-to-notifications :client drive-client :on-notification #'drive-notified)
  (acp-subscribe-to-requests :client drive-client :on-request #'drive-asked)
  (seq-do-indexed (lambda (step number) (drive-do number step))
                  (cons '((do . "initialize")) (append (map-elt drive-given 'steps) nil)))
  (acp-shutdown :client drive-client)
  (drive-tell "end"))
;;; drive.el ends here
